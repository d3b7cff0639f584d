"""What a training loop hands over to a session for one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnscope.core.stepped import Stepped


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Squared gradient norms of the micro-batches of one step, and of their sum, all in the same units."""

    sum_squares: Sequence[Tensor]
    accumulated: Tensor
    sizes: Sequence[float] | None
    """Examples or tokens in each, where the loop said so."""
    of_one_rank: bool = False
    """Whether the step's gradient is an average over other ranks' micro-batches too."""


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch that the loop has run, with the ids of its examples, and the loop's own logits and targets."""

    ids: Any
    logits: Tensor
    targets: Tensor
    inputs: Any = None
    """What the model was given, or the whole batch, to notice an id that comes back with other inputs."""
    groups: Any = None
    """The group of each example, numbers or names; by default its class."""

    @classmethod
    def copied(cls, ids: Any, logits: Tensor, targets: Any, inputs: Any, groups: Any) -> Examples:
        """With ids, targets and groups of its own: a loop may fill the same buffers with the next batch before this
        one is looked at."""
        return cls(_own(ids), logits.detach(), torch.as_tensor(targets).detach().clone(), inputs, _own(groups))


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a loop handed over for one step."""

    logged: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Numbers by name, one for each call."""
    batch: Any = None
    examples: Sequence[Examples] = ()
    micro_batches: MicroBatches | None = None
    stepped: Stepped | None = None
    """What each of several optimizers stepped with; None where all is as it stands in the optimizers."""

    def needs_met(self) -> set[str]:
        met = set()
        if self.logged:
            met.add("logged")
        if self.batch is not None:
            met.add("batch")
        if self.examples:
            met.add("examples")
        return met


def _own(values: Any) -> Any:
    """A copy of a tensor or an array; anything else as it is."""
    if isinstance(values, Tensor):
        return values.detach().clone()
    return values.copy() if isinstance(values, np.ndarray) else values
