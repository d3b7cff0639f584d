"""What a training loop hands over to a session for one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Squared gradient norms of the micro-batches of one step, and of their sum, all in the same units."""

    sum_squares: Sequence[Tensor]
    accumulated: Tensor
    sizes: Sequence[float] | None
    """Examples or tokens in each, where the loop said so."""


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch that the loop has run: ids, its own logits and targets, and what else it handed over."""

    ids: Any
    logits: Tensor
    targets: Tensor
    inputs: Any = None
    """What the model was given, or the whole batch: ids that come back with other inputs are noticed by it."""
    groups: Any = None
    """The group of each example, numbers or names; without, its class."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """All that a loop handed over for one step; empty where it did not."""

    logged: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Numbers by name, one for each call."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """`batch`, `examples`, `all_examples`."""
    micro_batches: MicroBatches | None = None
