"""One model under analysis: moments in, records out, metrics by key."""

from __future__ import annotations

import traceback
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
from learnscope.analysis.records import Collector, Nowhere
from learnscope.analysis.steps import StepSides
from learnscope.core.moment import Moment, standing_gradients
from learnscope.core.probe import NEEDS, Probe
from learnscope.core.subject import Subject
from learnscope.run import Run
from learnscope.session.engine import Engine
from learnscope.session.opening import begin, check_model, finish, open_backend
from learnscope.session.optimizers import as_optimizers
from learnscope.task import Task

Warn = Callable[[str, str], None]


class Measuring:
    """Holds what lasts from one measurement to the next."""

    def __init__(
        self,
        model: nn.Module,
        config: AnalysisConfig,
        computers: Sequence[MetricComputer],
        warn: Warn,
        optimizer: Any,
        *,
        run: str | Path | None,
        task: Task | None,
        strict: bool,
    ) -> None:
        check_model(model)
        self.config, self._warn, self._strict = config, warn, strict
        self.steps = 0
        self.subject = Subject(model, self._optimizers(optimizer, model))
        self._collector = Collector()
        backend = open_backend(run, resume=False) if run is not None else Nowhere()
        self.engine = Engine(
            self.subject, [], backend, source="analysis", provides=NEEDS, sinks=[self._collector],
            strict=strict,
        )  # fmt: skip
        self.metrics: list[Metric] = []
        self._history: History | None = None
        self._sides: StepSides | None = None
        self._batches = Batches(task, self._due_next)
        for computer in computers:
            self.add(computer)
        self._described = run is None
        """Whether the run folder has its manifest, which waits for the optimizer to be known."""

    def add(self, computer: MetricComputer) -> None:
        """Take a metric in, and begin to keep what it needs."""
        metric = make_metric(computer)
        metric.bound = self.engine.add(metric.probe)
        self.metrics.append(metric)
        if "previous" in metric.needs and self._history is None:
            self._history = History(
                self.subject.by_name(),
                self.steps,
                device=self.config.snapshot_device,
                dtype=self.config.snapshot_dtype,
            )
        if "holdout" in metric.needs:
            self._batches.look_out(self.subject.model)
        if metric.looks_at_step and self._sides is None:
            self._sides = StepSides(
                self.subject, self._safely(self._before_step), self._safely(self._after_step), self._due_next
            )

    def step(
        self, model: nn.Module, inputs: Any, optimizer: Any, metadata: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Count a step; the metrics that are due at it, and why some are NaN."""
        self.steps += 1
        if model is not self.subject.model:
            check_model(model)
            self.subject.model = model
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
        with self._batches.paused():
            for metric in self.metrics:
                if metric.label not in self._collector.records and self._has_all(metric, fits):
                    metric.offers = self._offers(parameters, context)
                    self.engine.fire(metric.bound, self._with_snapshot(context.moment))
                    metric.offers = {}
        context.moment = None
        if fits and self._history is not None:
            self._history.advance(parameters, self.steps)
        self._turn()
        return self._collector.read(self.metrics)

    # the two sides of the optimizer's step

    def _before_step(self) -> None:
        assert self._sides is not None
        self._describe()
        moment = self._moment(self.steps + 1, "before_step", self._sides.gradients)
        for metric in self.metrics:
            if metric.probe.at == "before_step":
                self.engine.fire(metric.bound, moment)
            elif type(metric.probe).prepare is not Probe.prepare:
                self.engine.prepare(metric.bound, moment)

    def _after_step(self) -> None:
        assert self._sides is not None
        moment = self._moment(self.steps + 1, "after_step", self._sides.gradients)
        for metric in self.metrics:
            # what was prepared before the step is for right after it, while the gradients still stand
            prepared = any(key.startswith("_") for key in metric.bound.state)
            if prepared:
                self.subject.refresh()
            if metric.needs == {"optimizer"} or (prepared and self._fits(self.subject.by_name())):
                self.engine.fire(metric.bound, self._with_snapshot(moment))

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

    def _moment(self, step: int, phase: str, take_gradients: Callable[[], Any]) -> Moment:
        return Moment(step=step, phase=phase, source="analysis", subject=self.subject, take_gradients=take_gradients)

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
            self._warn(f"{metric.label} {lacking[0]}", f"{metric.label} is not measured: it needs {cause}")
        if "grads" in metric.needs and self._sides is not None and self._sides.skipped:
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
            if self._strict:
                raise
            self._warn("architecture", f"what compares with earlier weights is not measured: {error}")
            return False
        return True

    def _describe(self) -> None:
        if not self._described:
            begin(self.engine, self.subject, resume=False, step=0)
            self._described = True

    def _turn(self) -> None:
        """To the next step: what belonged to this one goes."""
        self._batches.forget()
        self.subject.holdout = None
        if self._sides is not None:
            self._sides.forget()

    def _due_next(self) -> bool:
        return (self.steps + 1) % self.config.interval == 0

    def _know(self, optimizer: Any) -> None:
        found = self._optimizers(optimizer, self.subject.model)
        if found and self._sides is not None:
            self._sides.attach(found)
        self.subject.optimizers = found

    def _optimizers(self, given: Any, model: nn.Module) -> list[torch.optim.Optimizer]:
        try:
            return as_optimizers(given, model)
        except (TypeError, ValueError) as error:  # only what needs it goes without
            if self._strict:
                raise
            self._warn("optimizer", f"the optimizer is left alone: {error}")
            return []

    def _safely(self, action: Callable[[], None]) -> Callable[[], None]:
        def safe() -> None:
            try:
                action()
            except Exception:  # runs inside the optimizer's step, which must not fail of it
                if self._strict:
                    raise
                self._warn(action.__name__, f"the analysis failed, training goes on:\n{traceback.format_exc()}")

        return safe

    # state

    @property
    def run(self) -> Run:
        self._describe()
        self.engine.flush()
        return Run(self.engine.backend)

    def state_dict(self) -> dict[str, Any]:
        kept = None if self._history is None else self._history.kept
        return {
            "steps": self.steps,
            "snapshot_step": 0 if kept is None else kept.step,
            "weights": {} if kept is None else {name: t.detach().clone() for name, t in kept.tensors.items()},
            "states": {
                metric.label: {key: value for key, value in metric.bound.state.items() if not key.startswith("_")}
                for metric in self.metrics
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = int(state["steps"])
        if self._history is not None:
            kept = self._history.kept
            kept.check(state["weights"], "this state is of another model: call reset() to begin anew")
            kept.update(state["weights"], int(state["snapshot_step"]))
        for metric in self.metrics:
            metric.bound.state.update(state["states"].get(metric.label, {}))

    def close(self) -> None:
        if self._sides is not None:
            self._sides.close()
        self._batches.close()
        self.engine.close()
        if not isinstance(self.engine.backend, Nowhere):
            self._describe()
            finish(self.engine, "finished", last_step=self.steps)
