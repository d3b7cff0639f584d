"""How gradients flow through the layers of a model, batch by batch: an analyzer to call in one's own loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from learnscope.core.gradients import Gradients, current_gradients, read_gradients
from learnscope.core.handed import HandedOver
from learnscope.core.moment import NotAvailable
from learnscope.core.subject import Subject
from learnscope.dynamics.saved import RecordingAnalyzer, SavedError, load_session, save_session
from learnscope.findings.gradients.absent import absent
from learnscope.findings.gradients.exploding import exploding
from learnscope.findings.gradients.layer_norms import LayerNorms, layer_norms
from learnscope.findings.gradients.nonfinite import nonfinite
from learnscope.findings.gradients.vanishing import vanishing
from learnscope.model.selection import select_parameters
from learnscope.names import resolve
from learnscope.options import explain_options, whole_number
from learnscope.probes.gradients.gradient_flow import GradientFlow
from learnscope.probes.outputs.loss import Loss
from learnscope.quantities.gradients import GradientFlow as Flow
from learnscope.quantities.outputs import Loss as Logged
from learnscope.reading.cells import by_scope, value
from learnscope.reading.cuts import Cuts, known_cuts
from learnscope.reading.gather import one_pass
from learnscope.record import SEVERITIES, Record
from learnscope.report.gradients.layers import plot_gradients
from learnscope.session.opening import check_model
from learnscope.store.backend import Backend, MemoryBackend
from learnscope.store.reader import RunReader

KIND = "GradientFlowAnalyzer"
RECENT = 2_000
"""Records at hand, two a batch, so that the statistics of an epoch that has just ended need not read the whole run."""


class GradientFlowAnalyzer(RecordingAnalyzer):
    """Reads the gradients that a loop's own `loss.backward()` has left; there is no second backward.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> analyzer = GradientFlowAnalyzer(model)
    >>> for batch in range(3):
    ...     loss = model(torch.randn(16, 4)).square().mean()
    ...     model.zero_grad()
    ...     loss.backward()
    ...     numbers = analyzer.track_batch_gradients(loss, epoch=0, batch_idx=batch)
    >>> sorted(numbers["layer_norms"])
    ['0', '2']
    >>> analyzer.compute_epoch_statistics(0)["vanishing_layers"]
    []

    `track_layers` names layers, modules or parameters; others are not read. `run` is a folder to record in (otherwise
    memory), `cuts` say where a gradient vanishes or explodes. A step of the run is a tracked batch, in the order of
    tracking; a batch of an epoch that is tracked again replaces the earlier one.

    Gradients are read as they are: under a `GradScaler` call it after `scaler.unscale_(optimizer)`, and before or after
    clipping as you choose.
    """

    @partial(explain_options, owner=KIND)
    def __init__(
        self, model: nn.Module, track_layers: str | Iterable[str] | None = None, *, run: str | Path | None = None,
        cuts: Cuts | None = None,
    ) -> None:  # fmt: skip
        check_model(model)
        self.model = model
        self.cuts = cuts if cuts is not None else Cuts()
        self.track_layers = [track_layers] if isinstance(track_layers, str) else track_layers and list(track_layers)
        if self.track_layers is not None and not self.track_layers:
            raise ValueError("track_layers=[] tracks nothing: name layers, or pass None for all of them")
        self._tracked: tuple[Any, list[int] | None] = (None, None)
        self._positions(Subject(model))  # an unknown name is refused now
        super().__init__({"flow": GradientFlow(every=1, weights_every=1), "loss": Loss()}, run)
        self._steps: dict[tuple[int, int], int] = {}
        self._recent: deque[Record] = deque(maxlen=RECENT)

    def track_batch_gradients(self, loss: Any, epoch: int, batch_idx: int) -> dict[str, Any]:
        """Read the current gradients, after `loss.backward()` and before `optimizer.step()`.

        `loss` is only recorded (None if there is none). Norms that are not finite are NaN, with their reasons
        under `reasons`; `without_gradient` names the trainable parameters that the backward did not reach.
        """
        epoch, batch_idx = whole_number("epoch", epoch), whole_number("batch_idx", batch_idx)
        logged: dict[str, list[float]] = {"batch": [batch_idx]}
        if loss is not None:
            logged["loss"] = [_one_number(loss)]
        gradients = self._gradients(self._session.open(self.model))
        step = self._steps.get((epoch, batch_idx), len(self._steps) + 1)
        moment = self._session.moment(
            "before_step", step=step, epoch=epoch, take_gradients=lambda: gradients, handed=HandedOver(logged)
        )
        records = self._session.measure(moment)
        self._steps[epoch, batch_idx] = step
        self._recent += records.values()
        flow, recorded_loss = records["flow"], value(records["loss"], Logged.loss)
        norms, reasons = by_scope(flow, "layer", Flow.norm, stage="stepped")
        total, total_reason = by_scope(flow, "model", Flow.norm, stage="stepped")
        nonfinite_scopes = [row.scope for row in flow.rows() if row.name == Flow.first_nonfinite.name]
        return {
            "epoch": epoch, "batch": batch_idx, "step": step,
            "loss": math.nan if recorded_loss is None else float(recorded_loss),
            "total_norm": total["model"], "layer_norms": norms,
            "gradient_to_weight": by_scope(flow, "layer", Flow.gradient_to_weight)[0],
            "zero_share": by_scope(flow, "layer", Flow.zero_share)[0],
            "first_nonfinite": next(iter(nonfinite_scopes), None), "without_gradient": list(gradients.missing),
            "reasons": total_reason | reasons,
        }  # fmt: skip

    def compute_epoch_statistics(self, epoch: int) -> dict[str, Any]:
        """Each layer's gradient over the tracked batches of an epoch, and the layers that vanish or explode by name.

        A layer vanishes or explodes here when both ‖g‖/‖W‖ and ‖g‖ are 100 times off the median layer's, for three
        tracked batches in a row, the last of them in this epoch (`cuts`). If both ends of the model
        are off the median, only the end away from the output is named. If fewer batches were tracked, both lists are
        None and `reason` says so. `std_norm` is unbiased, NaN for a single batch.
        """
        epoch = whole_number("epoch", epoch)
        steps = sorted(step for (tracked, _), step in self._steps.items() if tracked == epoch)
        if not steps:
            epochs = sorted({tracked for tracked, _ in self._steps})
            known = f"tracked are {', '.join(map(str, epochs[-8:]))}" if epochs else "none has been tracked"
            raise NotAvailable(f"no batch of epoch {epoch} was tracked ({known}): call track_batch_gradients in it")
        return {
            "epoch": epoch, "batches": len(steps), **_statistics(layer_norms(self._around(steps), self.cuts, steps)),
        }  # fmt: skip

    def analyze_gradient_flow(self) -> dict[str, Any]:
        """The same over everything tracked, with the findings that say since when and what to do."""
        run = one_pass(self._reader())
        findings = [
            finding for analysis in (nonfinite, vanishing, exploding, absent) for finding in analysis(run, self.cuts)
        ]
        findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
        return {
            "epochs": sorted({epoch for epoch, _ in self._steps}), "batches": len(self._steps),
            **_statistics(layer_norms(run, self.cuts)), "findings": findings,
        }  # fmt: skip

    def plot_gradient_flow(self, save_dir: str | Path) -> list[Path]:
        """Draw the norms of every layer over the tracked batches, and their profile over the depth of the model."""
        run = one_pass(self._reader())
        return plot_gradients(run, layer_norms(run, self.cuts), Path(save_dir))

    def save(self, path: str | Path) -> Path:
        """Everything in one file, which is safetensors whatever it is called; see `load`."""
        options = {"track_layers": self.track_layers, "cuts": asdict(self.cuts)}
        return save_session(path, self._session, KIND, options)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, run: str | Path | None = None) -> GradientFlowAnalyzer:
        """The saved analyzer, continued with `model`; `run` is a new folder for its records, or None."""
        options, session = load_session(path, KIND)
        layers = (session.manifest.get("model") or {}).get("layers") or []
        missing = [layer for layer in layers if layer not in Subject(model).scopes("layer")]
        if missing:
            raise SavedError(f"{path} is of a model with a layer {missing[0]!r}, which {type(model).__name__} lacks")
        analyzer = cls(model, options["track_layers"], run=run, cuts=known_cuts(options["cuts"]))
        analyzer._session.restore(session)
        for record in analyzer._session.reader.records(Loss.__name__):
            batch = value(record, Logged.logged.at(key="batch"))
            assert record.epoch is not None
            assert batch is not None
            analyzer._steps[record.epoch, int(batch)] = record.step
        return analyzer

    def _positions(self, subject: Subject) -> list[int] | None:
        """Positions of the tracked parameters, chosen again when the model has other ones; None for all."""
        if self.track_layers is not None and self._tracked[0] is not subject.parameters:
            self._tracked = subject.parameters, select_parameters(subject.model, self.track_layers)
        return self._tracked[1]

    def _gradients(self, subject: Subject) -> Gradients:
        positions = self._positions(subject)
        if positions is None:
            gradients = current_gradients(subject)
        else:
            tracked = {i: grad for i in positions if (grad := subject.parameters[i].grad) is not None}
            gradients = read_gradients(subject, tracked)
            names = {subject.names[i] for i in positions}
            gradients = replace(gradients, missing=[name for name in gradients.missing if name in names])
        if not gradients.names:
            raise NotAvailable(
                "no tracked parameter has a gradient: call track_batch_gradients after loss.backward() and before "
                "optimizer.step() and optimizer.zero_grad()"
                + ("" if positions is None else f"; tracked are {', '.join(self.track_layers or [])}")
            )
        return gradients

    def _around(self, steps: list[int]) -> RunReader:
        """A run of these steps, and of enough before them to see for how long a layer has been beyond a cut."""
        window = range(max(steps[0] - self.cuts.measurements + 1, 1), steps[-1] + 1)
        recent = {record.step for record in self._recent}
        records: Iterable[Record] = self._recent if recent.issuperset(window) else self._session.reader.records()
        part = MemoryBackend()
        part.put_manifest(self._reader().manifest)
        for record in records:
            if record.step in window:
                part.append(record.to_json())
        return RunReader(part)

    def _reader(self) -> RunReader:
        if not self._steps:
            raise NotAvailable("no batch has been tracked: call track_batch_gradients after loss.backward()")
        subject, reader = self._session.open(self.model), self._session.reader
        positions = self._positions(subject)
        if positions is None:
            return reader
        layers = dict.fromkeys(resolve(subject.names[i]).layer for i in positions)
        return _Tracked(reader.backend, list(layers))


class _Tracked(RunReader):
    """A run whose model has the tracked layers only: no others can be said to be missing."""

    def __init__(self, backend: Backend, layers: list[str]) -> None:
        super().__init__(backend)
        self._layers = layers

    @property
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest
        return {**manifest, "model": {**manifest["model"], "layers": self._layers}}


def _statistics(norms: LayerNorms) -> dict[str, Any]:
    layers = {}
    for layer, norm in norms.norms.items():
        ratio = norms.ratios.get(layer)
        layers[layer] = {
            "mean_norm": norm.mean, "std_norm": norm.std, "min_norm": norm.min, "max_norm": norm.max,
            "gradient_to_weight": ratio.mean if ratio is not None else math.nan, "measurements": norm.n,
            "not_finite": norm.not_finite,
        }  # fmt: skip
    return {
        "total_norm": asdict(norms.total), "loss": asdict(norms.loss), "layers": layers,
        "vanishing_layers": norms.vanishing, "exploding_layers": norms.exploding, "reason": norms.reason,
    }  # fmt: skip


def _one_number(loss: Any) -> float:
    if isinstance(loss, torch.Tensor):
        if loss.numel() != 1:
            raise ValueError(f"loss has shape {tuple(loss.shape)}: pass the one number whose backward was run, or None")
        return float(loss.detach())
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise TypeError(f"loss={loss!r}: pass the one number whose backward was run, or None") from None
