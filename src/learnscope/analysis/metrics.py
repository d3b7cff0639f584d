"""Metric computers: what a measurement is made of, and what they are given."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, probe

GIVEN = ("delta", "snapshot", "old_snapshot", "current_snapshot", "context")
"""What `compute` is called with, by these names; a computer gets those that it names, or all with `**kwargs`."""


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


def wants(function: Callable[..., Any], *names: str) -> bool:
    """Whether a function takes one of these keywords."""
    parameters = inspect.signature(function).parameters
    return any(p.kind is p.VAR_KEYWORD or p.name in names for p in parameters.values())


def probe_calling(
    computer: MetricComputer, offers: Mapping[str, Callable[[], Any]], returned: dict[int, Mapping[str, Any]]
) -> Probe:
    """A probe that calls `computer` with those offers that its signature names, and records the numbers it returns.

    All that it returns is put into `returned`. An offer that nobody wants is never computed.
    """

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
