"""A metric computer in a measurement: the probe that stands for it, and the keys of what it recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from learnscope.analysis.computers import ProbeMetrics
from learnscope.analysis.metrics import GIVEN, MetricComputer, call_with_what_it_names, wants
from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.core.subject import Subject
from learnscope.record import Record
from learnscope.session.engine import Bound

CURES = {
    "grads": "the gradients, which were cleared before on_optimizer_step was called, and no torch optimizer was seen "
    "to step these parameters: call it before zero_grad()",
    "optimizer": "the optimizer, and none was given nor seen to step: pass optimizer= to on_optimizer_step",
}
"""What a metric lacks, and what to do about it."""


def has(subject: Subject, need: str) -> bool:
    """Whether a measurement of the subject can meet a need, apart from earlier weights."""
    if need == "grads":
        return any(p.grad is not None for p in subject.parameters)
    return need == "previous" or bool(getattr(subject, {"optimizer": "optimizers"}.get(need, need), None))


@dataclass(slots=True)
class Metric:
    """A computer with its probe. `offers` is what a computer of the user's may ask for while it is called."""

    computer: MetricComputer
    probe: Probe
    needs: frozenset[str]
    returned: dict[str, Any]
    """What the user's own computer returned last, numbers or not."""
    offers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    bound: Bound = field(init=False)

    @property
    def label(self) -> str:
        return self.bound.label

    @property
    def looks_at_step(self) -> bool:
        """Whether it must be there when the optimizer steps."""
        prepares = type(self.probe).prepare is not Probe.prepare
        return prepares or self.probe.at == "before_step" or bool(self.needs & {"grads", "optimizer"})

    def read(self, record: Record | None) -> tuple[dict[str, Any], dict[str, str]]:
        """What was recorded by its keys, and why some of it is NaN."""
        if record is None or record.error is not None:
            return {}, {}
        if not isinstance(self.computer, ProbeMetrics) or isinstance(self.probe, _Computed):
            return self.returned, {}
        return self.computer.keys(record.tables), self.computer.reasons(record.tables)


class _Computed(Probe):
    """Calls a metric computer, and records the numbers among what it returns."""

    metric: Any
    """A list that holds its `Metric`, which in turn holds this probe."""

    def measure(self, moment: Moment) -> dict[str, float]:  # noqa: ARG002 - computers are given a context
        metric: Metric = self.metric[0]
        returned = call_with_what_it_names(metric.computer.compute, metric.offers)
        if not isinstance(returned, Mapping):
            raise TypeError(f"compute returned {type(returned).__name__}; it returns a dictionary of metrics by key")
        metric.returned.clear()
        metric.returned.update(returned)
        return {str(key): value for key, value in returned.items() if _is_number(value)}


def make_metric(computer: MetricComputer) -> Metric:
    """The built-in ones are their probes; whatever defines its own `compute` is called."""
    own = type(computer).__module__ == ProbeMetrics.__module__
    if isinstance(computer, ProbeMetrics) and own:
        return Metric(computer, computer.probe, computer.probe.needs, {})
    needs = set(computer.probe.needs) if isinstance(computer, ProbeMetrics) else set()
    if wants(computer.compute, *(name for name in GIVEN if name != "context")):
        needs.add("previous")
    # named after the computer, so that records and warnings are
    kind: type[_Computed] = type(type(computer).__name__, (_Computed,), {"__doc__": type(computer).__doc__})
    holder: list[Metric] = []
    metric = Metric(computer, kind(metric=holder), frozenset(needs), {})
    holder.append(metric)
    return metric


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.numel() == 1 if isinstance(value, Tensor) else value.size == 1
    if isinstance(value, float) and math.isnan(value):
        return True
    return isinstance(value, bool | int | float | np.number)
