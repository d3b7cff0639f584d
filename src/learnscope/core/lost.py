"""A training step that was to come and may never have happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from learnscope.core.gradients import Gradients


@dataclass(frozen=True, slots=True)
class BadGradients:
    """What the gradients of a step were that are not finite, or that no step has used."""

    norm: float
    nan: int
    inf: int
    tensors: int
    """Those with a NaN or an infinity."""
    first: str | None = None
    """The first of them in the order of the backward."""
    first_entries: int = 0


@dataclass(slots=True)
class LostStep:
    """One attempt at a step."""

    cause: str
    """What showed it: `clip`, `loss`, `scaler` or `end`."""
    why: str
    attempt: int
    """Counted over the attempts at the same step."""
    skipped: bool | None = None
    """Whether the step never came; None as long as that is not known."""
    gradients: BadGradients | None = None
    logged: Mapping[str, float] = field(default_factory=dict)
    """What the loop logged for it, `loss` among them."""
    rows: Sequence[int | str] = ()
    """Ids of its examples, where the loop gave them."""


def bad_gradients(gradients: Gradients, order: Sequence[str], scale: float = 1.0) -> BadGradients:
    """Counts of what is not finite, and where it began."""
    table = gradients.table
    nan, inf = ([int(n) for n in column.tolist()] for column in (table.nan, table.inf))
    bad = [a + b for a, b in zip(nan, inf, strict=True)]
    norm = float(table.sum_squares.double().sum().sqrt()) / scale
    place = first_in_order(gradients.names, order, bad)
    first, entries = (None, 0) if place is None else (gradients.names[place], bad[place])
    return BadGradients(norm, sum(nan), sum(inf), sum(map(bool, bad)), first, entries)


def first_in_order(names: Sequence[str], order: Sequence[str], bad: Sequence[float]) -> int | None:
    """The place of the first bad tensor in the order of the backward.

    What the recorded backward never reached comes last, in the reverse of the model's order.

    >>> first_in_order(["a", "b", "c"], ["c", "b"], [1, 2, 0])
    1
    """
    reached = {name: place for place, name in enumerate(order)}
    places = [place for place, count in enumerate(bad) if count]
    return min(places, key=lambda i: (reached.get(names[i], len(reached)), -i), default=None)
