"""What a training loop hands over to a session for one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from learnscope.core.forwards import ForwardCall
from learnscope.core.lost import LostStep
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


Form = Literal["classes", "answers", "numbers", "signs", "triplets"]


@dataclass(slots=True, kw_only=True)
class LossCall:
    """One call of a loss function by the loop: sums over what it was given, as small tensors on its device."""

    function: str
    """Torch's name of it, such as `cross_entropy`."""
    reduction: str
    form: Form
    width: int
    """Columns of the outputs: classes, yes/no answers, or numbers."""
    value: Tensor
    """What it returned, of several numbers their mean, in float64."""
    entries: int
    """How many numbers it is a mean of with reduction "mean", if none is left out."""
    sums: dict[str, Any] = field(default_factory=dict)
    """As `learnscope.tensor.outputs.objective` says, for the form: small tensors, or arrays."""
    rows: int = 0
    """How many rows of the outputs were looked at: one of `looked_at`, of outputs that are large."""
    looked_at: int = 1
    ignore_index: int = -100
    """Of classes."""
    soft: bool = False
    """Whether targets are shares of the classes in each row."""
    smoothing: float = 0.0
    weight: Tensor | None = None
    """Of each class, a copy."""
    weighted: bool = False
    """Whether classes, answers or examples are weighted."""
    broadcast: float = 1.0
    """Entries compared for each of the larger one's: above 1 where outputs and targets were broadcast."""
    tokens: Tensor | None = None
    """What `token_sums` gave, where the model's inputs are tokens that the targets belong to."""
    places: Tensor | None = None
    """What `learnscope.tensor.outputs.places` gave, where outputs and targets belong to places of the only input."""
    reached: int = 0
    """How many backward passes have come by its outputs."""
    touched: Tensor | None = None
    """By column: whether one of them brought a gradient that is not 0. None where that was not looked at."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a loop handed over for one step."""

    logged: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Numbers by name, one for each call."""
    batch: Any = None
    examples: Sequence[Examples] = ()
    micro_batches: MicroBatches | None = None
    loss_calls: Sequence[LossCall] = ()
    """The loop's calls of torch's loss functions, where a probe needs them."""
    forwards: Sequence[ForwardCall] | None = None
    """The training forwards of the model, where a probe needs them; None where nobody has looked for them."""
    stepped: Stepped | None = None
    """What each of several optimizers stepped with; None where all is as it stands in the optimizers."""
    rows: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    """Ids of the step's examples, and of those of the step before, if its loss stands out."""
    lost: LostStep | None = None
    """The attempt at a step that this is about."""

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
