"""Metric computers: what a measurement is made of, and what they are given."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from learnscope.core.moment import Moment

GIVEN = ("delta", "snapshot", "old_snapshot", "current_snapshot", "context")
"""What `compute` is called with, by these names; a computer gets those that it names, or all with `**kwargs`."""


@dataclass(kw_only=True)
class AnalysisContext:
    """What a computer may look at besides the change of the weights."""

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


def call_with_what_it_names(function: Callable[..., Any], offers: Mapping[str, Callable[[], Any]]) -> Any:
    """`function` with the offers that its signature names; an offer that nobody wants is never made."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        chosen = offers
    else:
        chosen = {name: offer for name, offer in offers.items() if name in parameters}
    return function(**{name: offer() for name, offer in chosen.items()})


def wants(function: Callable[..., Any], *names: str) -> bool:
    """Whether a computer would be given one of these."""
    parameters = inspect.signature(function).parameters
    return any(p.kind is p.VAR_KEYWORD or p.name in names for p in parameters.values())
