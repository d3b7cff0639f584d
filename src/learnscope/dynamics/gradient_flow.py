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

from learnscope.core.gradients import Gradients, read_gradients, standing_gradients
from learnscope.core.handed import HandedOver
from learnscope.core.moment import NotAvailable
from learnscope.core.subject import Subject
from learnscope.dynamics.saved import SavedError, load_session, save_session
from learnscope.findings.gradients.absent import absent
from learnscope.findings.gradients.layer_norms import LayerNorms, Spread, layer_norms
from learnscope.findings.gradients.nonfinite import nonfinite
from learnscope.findings.gradients.vanishing import gradients as off_course
from learnscope.model.selection import select_parameters
from learnscope.names import resolve
from learnscope.options import explain_options, whole_number
from learnscope.probes.gradients.gradient_flow import GradientFlow
from learnscope.probes.outputs.loss import Loss
from learnscope.quantities.gradients import GradientFlow as Flow
from learnscope.quantities.outputs import Loss as Logged
from learnscope.reading.cells import by_scope, value
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.record import SEVERITIES, Record
from learnscope.report.gradients.layers import plot_gradients
from learnscope.run import Run
from learnscope.session.manual import ManualSession, own_backend
from learnscope.session.opening import check_model
from learnscope.store.backend import MemoryBackend
from learnscope.store.reader import RunReader

KIND = "GradientFlowAnalyzer"
KEPT = 2_000
"""Records at hand, two a batch, so that the statistics of an epoch that has just ended need not read the whole run."""


class GradientFlowAnalyzer:
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

    `track_layers` names layers, modules or parameters; what is not named is not read. `run` is a folder to record in
    (otherwise memory), `cuts` say where a gradient vanishes or explodes. A step of the run is a tracked batch, in the
    order of tracking; a batch of an epoch that is tracked again replaces what it was before.

    Gradients are read as they stand. Under a `GradScaler` that is after `scaler.unscale_(optimizer)`; where they are
    clipped, the place of the call says whether it is before or after.
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
        probes = {"flow": GradientFlow(every=1, weights_every=1), "loss": Loss()}
        self._session = ManualSession(probes, own_backend(run), source="dynamics")
        self._steps: dict[tuple[int, int], int] = {}
        self._recent: deque[Record] = deque(maxlen=KEPT)

    @property
    def run(self) -> Run:
        """All that was recorded."""
        return self._session.run

    def track_batch_gradients(self, loss: Any, epoch: int, batch_idx: int) -> dict[str, Any]:
        """Read the gradients that stand, after `loss.backward()` and before `optimizer.step()`.

        `loss` is only written down (None if there is none). Norms that are not finite are NaN, with their reasons
        under `reasons`; `without_gradient` names the trainable parameters that the backward did not reach.
        """
        place = whole_number("epoch", epoch), whole_number("batch_idx", batch_idx)
        logged: dict[str, list[float]] = {
            "batch": [place[1]],
            **({} if loss is None else {"loss": [_one_number(loss)]}),
        }
        found = self._standing(self._session.open(self.model))
        step = self._steps.get(place, len(self._steps) + 1)
        moment = self._session.moment(
            "before_step", step=step, epoch=place[0], take_gradients=lambda: found, handed=HandedOver(logged)
        )
        records = self._session.measure(moment)
        self._steps[place] = step
        self._recent += records.values()
        norms, reasons = by_scope(records["flow"], "layer", Flow.norm, stage="stepped")
        total, why = by_scope(records["flow"], "model", Flow.norm, stage="stepped")
        bad = [row.scope for row in records["flow"].rows() if row.name == Flow.first_nonfinite.name]
        return {
            "epoch": place[0], "batch": place[1], "step": step, "loss": _number(value(records["loss"], Logged.loss)),
            "total_norm": total["model"], "layer_norms": norms,
            "gradient_to_weight": by_scope(records["flow"], "layer", Flow.gradient_to_weight)[0],
            "zero_share": by_scope(records["flow"], "layer", Flow.zero_share)[0],
            "first_nonfinite": bad[0] if bad else None, "without_gradient": list(found.missing),
            "reasons": why | reasons,
        }  # fmt: skip

    def compute_epoch_statistics(self, epoch: int) -> dict[str, Any]:
        """Each layer's gradient over the tracked batches of an epoch, and the layers that vanish or explode by name.

        A layer vanishes or explodes when ‖g‖/‖W‖ is beyond a cut, or 100 times off the median layer's as ‖g‖ is, for
        three tracked batches in a row, the last of them in this epoch; all of it as `cuts` say. Of a gradient that is
        off the median at both ends of the model, only the end away from the output is named. Where fewer were tracked,
        both lists are None and `reason` says so. `std_norm` is unbiased, NaN for a single batch.
        """
        epoch = whole_number("epoch", epoch)
        steps = sorted(step for (of, _), step in self._steps.items() if of == epoch)
        if not steps:
            known = sorted({of for of, _ in self._steps})
            there = f"tracked are {', '.join(map(str, known[-8:]))}" if known else "none has been tracked"
            raise NotAvailable(f"no batch of epoch {epoch} was tracked ({there}): call track_batch_gradients in it")
        found = layer_norms(self._around(steps), self.cuts, steps)
        return {"epoch": epoch, "batches": len(steps), **_told(found)}

    def analyze_gradient_flow(self) -> dict[str, Any]:
        """The same over everything tracked, with the findings that say since when and what to do."""
        run = one_pass(self._reader())
        found = layer_norms(run, self.cuts)
        stated = [finding for ask in (nonfinite, off_course, absent) for finding in ask(run, self.cuts)]
        stated.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
        epochs = sorted({epoch for epoch, _ in self._steps})
        return {"epochs": epochs, "batches": len(self._steps), **_told(found), "findings": stated}

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
        """The analyzer that was saved, which goes on with `model`; `run` is a new folder for its records, or none."""
        saved = load_session(path, KIND)
        layers = (saved.session.manifest.get("model") or {}).get("layers") or []
        lost = [layer for layer in layers if layer not in Subject(model).scopes("layer")]
        if lost:
            raise SavedError(f"{path} is of a model with a layer {lost[0]!r}, which {type(model).__name__} lacks")
        analyzer = cls(model, saved.options["track_layers"], run=run, cuts=Cuts(**saved.options["cuts"]))
        analyzer._session.restore(saved.session)
        for record in analyzer._session.reader.records(Loss.__name__):
            batch = value(record, Logged.logged.at(key="batch"))
            assert record.epoch is not None
            assert batch is not None
            analyzer._steps[record.epoch, int(batch)] = record.step
        return analyzer

    def _positions(self, subject: Subject) -> list[int] | None:
        """Of the tracked parameters; None for all. Asked again when the model's parameters are other ones."""
        if self.track_layers is not None and self._tracked[0] is not subject.parameters:
            self._tracked = subject.parameters, select_parameters(subject.model, self.track_layers)
        return self._tracked[1]

    def _standing(self, subject: Subject) -> Gradients:
        wanted = self._positions(subject)
        if wanted is None:
            found = standing_gradients(subject)
        else:
            there = {i: grad for i in wanted if (grad := subject.parameters[i].grad) is not None}
            found = read_gradients(subject, there)
            names = {subject.names[i] for i in wanted}
            found = replace(found, missing=[name for name in found.missing if name in names])
        if not found.names:
            raise NotAvailable(
                "no tracked parameter has a gradient: call track_batch_gradients after loss.backward() and before "
                "optimizer.step() and optimizer.zero_grad()"
                + ("" if wanted is None else f"; tracked are {', '.join(self.track_layers or [])}")
            )
        return found

    def _around(self, steps: list[int]) -> RunReader:
        """A run of these steps and of as many before them as a layer must be beyond a cut for, less one."""
        first = steps[0] - self.cuts.measurements + 1
        window = range(max(first, 1), steps[-1] + 1)
        there = {record.step for record in self._recent}
        records: Iterable[Record] = self._recent if there.issuperset(window) else self._session.reader.records()
        part = MemoryBackend()
        part.put_manifest(self._reader().manifest)
        for record in records:
            if record.step in window:
                part.append(record.to_json())
        return RunReader(part)

    def _reader(self) -> RunReader:
        if not self._steps:
            raise NotAvailable("no batch has been tracked: call track_batch_gradients after loss.backward()")
        positions = self._positions(self._session.open(self.model))
        reader = self._session.reader
        return reader if positions is None else _Tracked(reader, self._session.open(self.model), positions)


class _Tracked(RunReader):
    """The same run, of a model that has the tracked layers only: of the others nothing can be said to be missing."""

    def __init__(self, reader: RunReader, subject: Subject, positions: list[int]) -> None:
        super().__init__(reader.backend)
        self._layers = list(dict.fromkeys(resolve(subject.names[i]).layer for i in positions))

    @property
    def manifest(self) -> dict[str, Any]:
        whole = super().manifest
        return {**whole, "model": {**whole["model"], "layers": self._layers}}


def _told(found: LayerNorms) -> dict[str, Any]:
    layers = {}
    for layer, norm in found.norms.items():
        ratio = found.ratios.get(layer)
        layers[layer] = {
            "mean_norm": norm.mean, "std_norm": norm.std, "min_norm": norm.min, "max_norm": norm.max,
            "gradient_to_weight": ratio.mean if ratio is not None else math.nan, "measurements": norm.n,
            "not_finite": norm.not_finite,
        }  # fmt: skip
    return {
        "total_norm": _numbers(found.total), "loss": _numbers(found.loss), "layers": layers,
        "vanishing_layers": found.vanishing, "exploding_layers": found.exploding, "reason": found.reason,
    }  # fmt: skip


def _numbers(one: Spread) -> dict[str, float | int]:
    return asdict(one)


def _one_number(loss: Any) -> float:
    if isinstance(loss, torch.Tensor):
        if loss.numel() != 1:
            raise ValueError(f"loss has shape {tuple(loss.shape)}: pass the one number whose backward was run, or None")
        return float(loss.detach())
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise TypeError(f"loss={loss!r}: pass the one number whose backward was run, or None") from None


def _number(found: float | None) -> float:
    return math.nan if found is None else float(found)
