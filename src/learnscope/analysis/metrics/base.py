"""Metric computers: what they are given, and how a probe or a class of the user's is one."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learnscope.analysis.capture import with_mask
from learnscope.analysis.naming import plain_keys, reasons
from learnscope.analysis.primitives import ParameterDelta, ParameterSnapshot
from learnscope.core.gradients import current_gradients
from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, probe
from learnscope.core.subject import Subject
from learnscope.model.guard import guard
from learnscope.record import Measurement, Table
from learnscope.session.materialise import as_measurement, read_measured
from learnscope.task import task_for

GIVEN = ("delta", "snapshot", "old_snapshot", "current_snapshot", "context")
"""What `compute` is called with, by these names; a computer gets those that it names, or all with `**kwargs`."""
ALL_EXAMPLES = sys.maxsize
"""A batch that is handed over is used completely."""


@dataclass(kw_only=True)
class AnalysisContext:
    """What a computer is given besides the change of the weights."""

    model: nn.Module | None = None
    inputs: Any = None
    attention_mask: Tensor | None = None
    optimizer: Optimizer | None = None
    step: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    moment: Moment | None = field(default=None, repr=False, compare=False)
    """While a manager measures: what the other computers have already computed."""


class MetricComputer(ABC):
    """One kind of metric. Stateless: the same arguments give the same numbers.

    >>> class LargestChange(MetricComputer):
    ...     def compute(self, delta, **kwargs):
    ...         return {"largest/change": max(d.abs().max().item() for d in delta.values())}
    """

    @abstractmethod
    def compute(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """The metrics by key. Called with those of the keywords `GIVEN` that the signature names."""


class ProbeMetrics(MetricComputer):
    """A probe as a metric computer: any probe can be one, `manager.add_metric(ls.GradientFlow())`.

    Its tables become keys such as `prefix/layer_3/norm`.
    """

    kinds: Collection[str] | None = None
    """The kinds of tables that become keys; None for all."""

    def __init__(self, probe: Probe, prefix: str | None = None) -> None:
        self.probe = probe
        self.prefix = type(probe).__name__ if prefix is None else prefix

    def compute(
        self,
        *,
        context: AnalysisContext | None = None,
        snapshot: ParameterSnapshot | None = None,
        delta: ParameterDelta | None = None,  # noqa: ARG002 - probes take it from the snapshot, in one pass for all
        **_others: Any,
    ) -> dict[str, float]:
        """The metrics of the context's model, outside of a manager too."""
        moment = _moment(self, context, snapshot)
        with torch.no_grad(), guard(moment.model):
            measured = as_measurement(self.probe.measure(moment)) or Measurement()
            tables = read_measured(measured)
        return self.keys(tables)

    def keys(self, tables: Sequence[Table]) -> dict[str, float]:
        """The numbers of the probe's tables by their keys."""
        chosen = [table for table in tables if self.kinds is None or table.kind in self.kinds]
        return {f"{self.prefix}/{key}": value for key, value in self.plain(chosen).items()}

    def reasons(self, tables: Sequence[Table]) -> dict[str, str]:
        return reasons(tables, self.keys)

    def plain(self, tables: Sequence[Table]) -> Mapping[str, float]:
        return plain_keys(tables)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.probe})"


def _moment(owner: ProbeMetrics, context: AnalysisContext | None, snapshot: ParameterSnapshot | None) -> Moment:
    """The context as a moment: a manager's own, or one made of what the context has."""
    if context is None or context.model is None:
        raise ValueError(f"{type(owner).__name__} needs a model: compute(context=AnalysisContext(model=model, …))")
    if context.moment is not None:
        return context.moment
    subject = Subject(context.model, [context.optimizer] if context.optimizer is not None else [])
    if context.inputs is not None:
        batch = with_mask(context.inputs, context.attention_mask)
        subject.task, subject.holdout = task_for(batch, context.model), [batch]
    moment = Moment(step=context.step, phase="after_step", source="analysis", subject=subject)
    moment.snapshot = None if snapshot is None else snapshot._kept
    moment.take_gradients = partial(current_gradients, subject)
    return moment


def wants(function: Callable[..., Any], *names: str) -> bool:
    parameters = inspect.signature(function).parameters
    return any(p.kind is p.VAR_KEYWORD or p.name in names for p in parameters.values())


def probe_calling(
    computer: MetricComputer, offers: Mapping[str, Callable[[], Any]], returned: dict[int, Mapping[str, Any]]
) -> Probe:
    """A probe that calls `computer` with the offers its signature names; all it returns goes into `returned`."""

    def measure(_moment: Moment) -> dict[str, Any]:
        metrics = computer.compute(**{name: offer() for name, offer in offers.items() if wants(computer.compute, name)})
        if not isinstance(metrics, Mapping):
            raise TypeError(f"compute returned {type(metrics).__name__}; it returns a dictionary of metrics by key")
        returned[id(computer)] = dict(metrics)
        return {str(key): value for key, value in metrics.items() if _is_number(value)}

    # named after the computer, so that records and warnings are
    measure.__name__, measure.__doc__ = type(computer).__name__, type(computer).__doc__
    return probe()(measure)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.numel() == 1 if isinstance(value, Tensor) else value.size == 1
    return isinstance(value, bool | int | float | np.number)
