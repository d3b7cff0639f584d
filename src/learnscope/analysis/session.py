"""One model under analysis: moments in, records out, metrics by key."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from learnscope.analysis.capture import Batches
from learnscope.analysis.config import AnalysisConfig
from learnscope.analysis.metrics.base import GIVEN, AnalysisContext, MetricComputer, ProbeMetrics, probe_calling, wants
from learnscope.analysis.primitives import History
from learnscope.core.gradients import current_gradients
from learnscope.core.handed import HandedOver
from learnscope.core.moment import Moment
from learnscope.core.probe import prepares
from learnscope.run import Run
from learnscope.session.bound import Bound
from learnscope.session.manual import ManualSession, UnstoredBackend
from learnscope.session.opening import open_backend
from learnscope.session.ranks import is_silent
from learnscope.session.steps.ends import StepEnds
from learnscope.session.steps.optimizers import as_optimizers
from learnscope.task import Task

CURES = {
    "grads": "the gradients, which were cleared before on_optimizer_step was called, and no torch optimizer was seen "
    "to step these parameters: call it before zero_grad()",
    "optimizer": "the optimizer, and none was given nor seen to step: pass optimizer= to on_optimizer_step",
}
"""What a metric lacks, and what to do about it."""

OWN = f"{MetricComputer.__module__.rpartition('.')[0]}."
"""Where the computers are that come with the analysis: the records of their probes are all there is to them."""


class Metric(NamedTuple):
    """A computer in a session, with its probe."""

    computer: MetricComputer
    bound: Bound
    needs: frozenset[str]


class AnalysisSession:
    """Holds what lasts from one measurement to the next."""

    def __init__(
        self, model: nn.Module, config: AnalysisConfig, computers: Sequence[MetricComputer], optimizer: Any, *,
        run: str | Path | None, task: Task | None, strict: bool,
    ) -> None:  # fmt: skip
        self.config, self.steps = config, 0
        backend = UnstoredBackend() if run is None or is_silent(run) else open_backend(run, resume=False)
        self._session = ManualSession({}, backend, source="analysis", strict=strict)
        self.subject, self._engine = self._session.set_model(model), self._session.engine
        self.subject.optimizers = self._optimizers(optimizer)
        self.metrics: list[Metric] = []
        self._offers: dict[str, Callable[[], Any]] = {}  # what the user's own computers may ask for while called
        self._returned: dict[int, Mapping[str, Any]] = {}  # what they returned last, numbers or not
        self._history: History | None = None
        self._ends: StepEnds | None = None
        self._step_seen = False
        """Whether the optimizer has stepped since the last call, at a step that is due."""
        self._batches = Batches(task, self._due_next)
        for computer in computers:
            self.add(computer)

    def add(self, computer: MetricComputer) -> None:
        """Add a metric, and begin to keep what it needs."""
        needs = computer.probe.needs if isinstance(computer, ProbeMetrics) else frozenset[str]()
        if isinstance(computer, ProbeMetrics) and type(computer).__module__.startswith(OWN):
            probe = computer.probe
        else:  # whatever defines its own `compute` is called
            probe = probe_calling(computer, self._offers, self._returned)
            needs |= {"previous"} if wants(computer.compute, *(name for name in GIVEN if name != "context")) else set()
        self.metrics.append(Metric(computer, self._session.add(probe), needs))
        if "previous" in needs and self._history is None:
            placement = {"device": self.config.snapshot_device, "dtype": self.config.snapshot_dtype}
            self._history = History(self.subject.by_name(), self.steps, **placement)
        if "holdout" in needs:
            self._batches.watch_forward(self.subject.model)
        if prepares(probe) or probe.at == "before_step" or needs & {"grads", "optimizer"}:
            self._follow_steps()

    def step(
        self, model: nn.Module, inputs: Any, optimizer: Any, metadata: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Count a step; returns the metrics that are due at it, and why some are NaN."""
        if self._ends is not None:
            self._ends.settle()
        self.steps += 1
        if model is not self.subject.model:
            self._session.set_model(model)
        if optimizer is not None and not self.subject.optimizers:
            self.subject.optimizers = self._optimizers(optimizer)
            if self._ends is not None:
                self._ends.attach(self.subject.optimizers)
        if self.steps % self.config.interval:
            self._forget_step()
            return {}, {}
        self._write_manifest()
        self.subject.refresh()
        parameters = self.subject.by_name()
        fits = self._fits(parameters)
        self._measure(self._context(inputs, metadata), parameters, fits)
        if fits and self._history is not None:
            self._history.advance(parameters, self.steps)
        self._forget_step()
        records, metrics, reasons = self._session.take(), dict[str, Any](), dict[str, str]()
        for computer, bound, _ in self.metrics:
            record = records.get(bound.label)
            if record is None or record.error is not None:
                continue
            if id(computer) in self._returned:
                metrics |= self._returned[id(computer)]
            elif isinstance(computer, ProbeMetrics):
                metrics |= computer.keys(record.tables)
                reasons |= computer.reasons(record.tables)
        return metrics, reasons

    # the two sides of the optimizer's step

    def _follow_steps(self) -> None:
        if self._ends is not None:
            return
        # hooks outlive a session that is forgotten: they refer to it weakly, and go with it
        self._ends = StepEnds(self._engine, weakref.proxy(self))
        weakref.finalize(self, self._ends.leave)
        if self.subject.optimizers:
            self._ends.attach(self.subject.optimizers)
        else:
            self._ends.find_optimizers()

    def looks_at_step(self) -> bool:
        return not self._step_seen and self._due_next()

    def due_probes(self) -> list[Bound]:
        return [metric.bound for metric in self.metrics]

    def clip_readers(self) -> list[Bound]:
        return self.due_probes() if self._due_next() else []

    def _nothing(self, **_: bool) -> None:
        """Which of several optimizers steps makes no difference here."""

    optimizer_comes = optimizer_went = out_of_turn = _nothing

    def step_opened(self) -> None:
        self._step_seen = True
        self._write_manifest()
        moment = self._moment_of_step("before_step")
        for _, bound, _ in self.metrics:
            if bound.probe.at != "before_step" and prepares(bound.probe):
                self._engine.prepare(bound, moment)

    def gradients_known(self) -> None:
        moment = self._moment_of_step("before_step")
        for _, bound, _ in self.metrics:
            if bound.probe.at == "before_step":
                self._engine.fire(bound, moment)

    def step_ended(self) -> None:
        if not (self._step_seen and self._due_next()):
            return
        moment = self._moment_of_step("after_step")
        for _, bound, needs in self.metrics:
            # what was prepared before the step is for right after it, while the gradients are still there
            prepared = any(key.startswith("_") for key in bound.state)
            if prepared:
                self.subject.refresh()
            if needs == {"optimizer"} or (prepared and self._fits(self.subject.by_name())):
                self._engine.fire(bound, self._with_snapshot(moment))

    def _moment_of_step(self, phase: str) -> Moment:
        assert self._ends is not None
        handed = HandedOver(stepped=self._ends.stepped())
        return self._session.moment(phase, step=self.steps + 1, handed=handed, take_gradients=self._ends.gradients)

    # one measurement

    def _context(self, inputs: Any, metadata: dict[str, Any]) -> AnalysisContext:
        batch = self._batches.find(self.subject, inputs, metadata.get("attention_mask"))
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else metadata.get("attention_mask")
        optimizer = self.subject.optimizers[0] if self.subject.optimizers else None
        moment = self._session.moment(
            "after_step", step=self.steps, take_gradients=lambda: current_gradients(self.subject)
        )
        context = AnalysisContext(model=self.subject.model, inputs=batch, attention_mask=mask, optimizer=optimizer)
        return replace(context, step=self.steps, metadata=metadata, moment=moment)

    def _measure(self, context: AnalysisContext, parameters: Mapping[str, Tensor], fits: bool) -> None:
        """Fire what has not fired at the step itself."""
        assert context.moment is not None
        self._offers["context"] = lambda: context
        if self._history is not None:
            self._offers |= self._history.offers(parameters, self.steps)
        try:
            with self._batches.paused():
                for place, (_, bound, needs) in enumerate(self.metrics):
                    if bound.label not in self._session.newest.records and self._has_all(bound.label, needs, fits):
                        read_later = any("previous" in metric.needs for metric in self.metrics[place + 1 :])
                        self._engine.fire(bound, self._with_snapshot(context.moment, read_later=read_later))
        finally:
            self._offers.clear()  # they hold this session, and the probes hold them
        context.moment = None

    def _with_snapshot(self, moment: Moment, *, read_later: bool = True) -> Moment:
        if (history := self._history) is not None:
            moment.snapshot = history.kept
            history.kept.may_be_renewed = not read_later and history.is_free()
        return moment

    def _has_all(self, label: str, needs: frozenset[str], fits: bool) -> bool:
        missing = [need for need in sorted(needs) if not self._has(need)]
        if missing:
            cause = self._batches.problem if missing[0] == "holdout" else CURES.get(missing[0], missing[0])
            self._engine.warn(f"{label} {missing[0]}", f"{label} is not measured: it needs {cause}")
        if "grads" in needs and self._ends is not None and self._ends.skipped:
            return False  # these gradients are scaled, not finite, and were not used
        # for earlier weights that do not fit a warning has been given
        return not missing and (fits or "previous" not in needs)

    def _has(self, need: str) -> bool:
        if need == "grads":
            return any(p.grad is not None for p in self.subject.parameters)
        return need == "previous" or bool(getattr(self.subject, {"optimizer": "optimizers"}.get(need, need), None))

    def _fits(self, parameters: Mapping[str, Tensor]) -> bool:
        try:
            if self._history is not None:
                self._history.kept.check(parameters, "call reset() on the manager after architecture changes")
        except ValueError as error:
            if self._engine.strict:
                raise
            self._engine.warn("architecture", f"what compares with earlier weights is not measured: {error}")
            return False
        return True

    def _write_manifest(self) -> None:
        """Called late, as the optimizer may become known late."""
        if not isinstance(self._engine.backend, UnstoredBackend):
            self._session.begin()

    def _forget_step(self) -> None:
        self._batches.take()
        self.subject.holdout = None
        self._step_seen = False
        if self._ends is not None:
            self._ends.forget()

    def _due_next(self) -> bool:
        return (self.steps + 1) % self.config.interval == 0

    def _optimizers(self, optimizer: Any) -> list[torch.optim.Optimizer]:
        try:
            return as_optimizers(optimizer, self.subject.model)
        except (TypeError, ValueError) as error:  # only what needs it goes without
            if self._engine.strict:
                raise
            self._engine.warn("optimizer", f"the optimizer is left alone: {error}")
            return []

    # state

    @property
    def run(self) -> Run:
        self._write_manifest()
        return self._session.run

    def state_dict(self) -> dict[str, Any]:
        kept = None if self._history is None else self._history.kept
        return {
            "steps": self.steps,
            "snapshot_step": 0 if kept is None else kept.step,
            "weights": {} if kept is None else {name: t.detach().clone() for name, t in kept.tensors.items()},
            "states": self._session.states(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = int(state["steps"])
        if self._history is not None:
            kept = self._history.kept
            kept.check(state["weights"], "this state is of another model: call reset() to begin anew")
            kept.update(state["weights"], int(state["snapshot_step"]))
        self._session.restore_states(state["states"])

    def close(self) -> None:
        if self._ends is not None:
            self._ends.close()
        self._batches.close()
        self._write_manifest()
        self._session.close(last_step=self.steps)
