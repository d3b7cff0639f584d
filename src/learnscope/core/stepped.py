"""What each of several optimizers was given at its own step: gradients, options, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from learnscope.core.moment import Moment

NOT_STEPPED = "its optimizer did not step"
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stepped:
    """What the optimizers of one training step were given, each at its own step.

    Of an optimizer that stepped several times, this is its last step. What a later backward or a scheduler has changed
    since is here as it was.
    """

    options: Mapping[int, Sequence[Options]]
    """The groups of every optimizer that stepped, by its id."""
    times: Mapping[int, int]
    """How often it stepped, by its id."""
    gradients: Mapping[int, Tensor | None]
    """By position; those that are not here are still in `p.grad`."""
    weights: Mapping[int, Tensor]
    """Σw² before the step, by position; weights that are not here have not moved."""

    def took_part(self, optimizer: Optimizer) -> bool:
        return self.times.get(id(optimizer), 0) > 0


def stepped_groups(moment: Moment) -> list[tuple[Optimizer, Options | None]]:
    """Every group of every optimizer with the options that it stepped with; None if its optimizer did not step."""
    stepped = moment.handed.stepped
    if stepped is None:
        return [(optimizer, group) for optimizer in moment.optimizers for group in optimizer.param_groups]
    found: list[tuple[Optimizer, Options | None]] = []
    for optimizer in moment.optimizers:
        options = stepped.options.get(id(optimizer))
        found += [
            (optimizer, None if options is None or place >= len(options) else options[place])
            for place in range(len(optimizer.param_groups))
        ]
    return found


def stepped_gradient(moment: Moment, position: int) -> Tensor | None:
    """The gradient that the parameter's optimizer stepped with."""
    stepped = moment.handed.stepped
    if stepped is not None and position in stepped.gradients:
        return stepped.gradients[position]
    return moment.subject.parameters[position].grad
