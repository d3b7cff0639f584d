"""One model under analysis: moments in, records out, metrics by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.analysis.batches import Batches
from learnscope.analysis.bound import CURES, Metric, has, make_metric
from learnscope.analysis.config import AnalysisConfig
from learnscope.analysis.history import History
from learnscope.analysis.metrics import AnalysisContext, MetricComputer
from learnscope.analysis.steps import StepSides
from learnscope.core.gradients import Gradients, standing_gradients
from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.run import Run
from learnscope.session.manual import ManualSession, NotKept
from learnscope.session.opening import open_backend
from learnscope.session.optimizers import as_optimizers
from learnscope.task import Task


class AnalysisSession:
    """Holds what lasts from one measurement to the next."""

    def __init__(
        self, model: nn.Module, config: AnalysisConfig, computers: Sequence[MetricComputer], optimizer: Any, *,
        run: str | Path | None, task: Task | None, strict: bool,
    ) -> None:  # fmt: skip
        self.config, self.steps = config, 0
        backend = open_backend(run, resume=False) if run is not None else NotKept()
        self._session = ManualSession({}, backend, source="analysis", strict=strict)
        self.subject, self._engine = self._session.look_at(model), self._session.engine
        self.subject.optimizers = self._optimizers(optimizer)
        self.metrics: list[Metric] = []
        self._history: History | None = None
        self._sides: StepSides | None = None
        self._batches = Batches(task, self._due_next)
        for computer in computers:
            self.add(computer)

    def add(self, computer: MetricComputer) -> None:
        """Take a metric in, and begin to keep what it needs."""
        metric = make_metric(computer)
        metric.bound = self._session.add(metric.probe)
        self.metrics.append(metric)
        if "previous" in metric.needs and self._history is None:
            kept = {"device": self.config.snapshot_device, "dtype": self.config.snapshot_dtype}
            self._history = History(self.subject.by_name(), self.steps, **kept)
        if "holdout" in metric.needs:
            self._batches.capture.look_out(self.subject.model)
        if metric.looks_at_step and self._sides is None:
            self._sides = StepSides(self._engine, self._before_step, self._after_step, self._due_next)

    def step(
        self, model: nn.Module, inputs: Any, optimizer: Any, metadata: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Count a step; the metrics that are due at it, and why some are NaN."""
        self.steps += 1
        if model is not self.subject.model:
            self._session.look_at(model)
        if optimizer is not None and not self.subject.optimizers:
            self._know(optimizer)
        if self.steps % self.config.interval:
            self._turn()
            return {}, {}
        self._describe()
        self.subject.refresh()
        parameters = self.subject.by_name()
        fits = self._fits(parameters)
        context = self._context(inputs, metadata)
        with self._batches.capture.paused():
            for metric in self.metrics:
                if metric.label not in self._session.newest.records and self._has_all(metric, fits):
                    metric.offers = self._offers(parameters, context)
                    self._session.fire(metric.label, self._with_snapshot(context.moment))
                    metric.offers = {}
        context.moment = None
        if fits and self._history is not None:
            self._history.advance(parameters, self.steps)
        self._turn()
        records, keys, reasons = self._session.take(), dict[str, Any](), dict[str, str]()
        for metric in self.metrics:
            measured, why = metric.read(records.get(metric.label))
            keys |= measured
            reasons |= why
        return keys, reasons

    # the two sides of the optimizer's step

    def _before_step(self) -> None:
        assert self._sides is not None
        self._describe()
        moment = self._moment(self.steps + 1, "before_step", self._sides.ends.gradients)
        for metric in self.metrics:
            if metric.probe.at == "before_step":
                self._session.fire(metric.label, moment)
            elif type(metric.probe).prepare is not Probe.prepare:
                self._engine.prepare(metric.bound, moment)

    def _after_step(self) -> None:
        assert self._sides is not None
        moment = self._moment(self.steps + 1, "after_step", self._sides.ends.gradients)
        for metric in self.metrics:
            # what was prepared before the step is for right after it, while the gradients still stand
            prepared = any(key.startswith("_") for key in metric.bound.state)
            if prepared:
                self.subject.refresh()
            if metric.needs == {"optimizer"} or (prepared and self._fits(self.subject.by_name())):
                self._session.fire(metric.label, self._with_snapshot(moment))

    # one measurement

    def _context(self, inputs: Any, metadata: dict[str, Any]) -> AnalysisContext:
        batch = self._batches.find(self.subject, inputs, metadata.get("attention_mask"))
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else metadata.get("attention_mask")
        return AnalysisContext(
            model=self.subject.model,
            inputs=batch,
            attention_mask=mask,
            optimizer=self.subject.optimizers[0] if self.subject.optimizers else None,
            step=self.steps,
            metadata=metadata,
            moment=self._moment(self.steps, "after_step", lambda: standing_gradients(self.subject)),
        )

    def _moment(self, step: int, phase: str, take_gradients: Callable[[], Gradients]) -> Moment:
        return self._session.moment(phase, step=step, take_gradients=take_gradients)

    def _with_snapshot(self, moment: Moment | None) -> Moment:
        assert moment is not None
        moment.snapshot = None if self._history is None else self._history.kept
        return moment

    def _offers(self, parameters: Mapping[str, Tensor], context: AnalysisContext) -> dict[str, Callable[[], Any]]:
        history = self._history
        offers: dict[str, Callable[[], Any]] = {"context": lambda: context}
        if history is not None:
            offers |= {
                "delta": lambda: history.delta(parameters, self.steps),
                "snapshot": history.old,
                "old_snapshot": history.old,
                "current_snapshot": lambda: history.current(parameters, self.steps),
            }
        return offers

    def _has_all(self, metric: Metric, fits: bool) -> bool:
        lacking = [need for need in sorted(metric.needs) if not has(self.subject, need)]
        if lacking:
            cause = self._batches.problem if lacking[0] == "holdout" else CURES.get(lacking[0], lacking[0])
            self._engine.warn(f"{metric.label} {lacking[0]}", f"{metric.label} is not measured: it needs {cause}")
        if "grads" in metric.needs and self._sides is not None and self._sides.ends.skipped:
            return False  # what stands is scaled, not finite, and was not used
        # of earlier weights that do not fit a warning has been given
        return not lacking and (fits or "previous" not in metric.needs)

    def _fits(self, parameters: Mapping[str, Tensor]) -> bool:
        """Whether the kept weights are those of this model."""
        if self._history is None:
            return True
        try:
            self._history.check(parameters)
        except ValueError as error:
            if self._engine.strict:
                raise
            self._engine.warn("architecture", f"what compares with earlier weights is not measured: {error}")
            return False
        return True

    def _describe(self) -> None:
        """Write the run folder's manifest, which waits for the optimizer to be known."""
        if not isinstance(self._engine.backend, NotKept):
            self._session.begin()

    def _turn(self) -> None:
        """To the next step: what belonged to this one goes."""
        self._batches.capture.take()  # what was seen in the step is not held on to
        self.subject.holdout = None
        if self._sides is not None:
            self._sides.forget()

    def _due_next(self) -> bool:
        return (self.steps + 1) % self.config.interval == 0

    def _know(self, optimizer: Any) -> None:
        found = self._optimizers(optimizer)
        if found and self._sides is not None:
            self._sides.attach(found)
        self.subject.optimizers = found

    def _optimizers(self, given: Any) -> list[torch.optim.Optimizer]:
        try:
            return as_optimizers(given, self.subject.model)
        except (TypeError, ValueError) as error:  # only what needs it goes without
            if self._engine.strict:
                raise
            self._engine.warn("optimizer", f"the optimizer is left alone: {error}")
            return []

    # state

    @property
    def run(self) -> Run:
        self._describe()
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
        if self._sides is not None:
            self._sides.close()
        self._batches.capture.close()
        self._describe()
        self._session.close(last_step=self.steps)
