"""Numbers, names and steps as sentences write them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def num(value: float) -> str:
    """Three digits, with an exponent only where it helps.

    >>> num(0.01234), num(12345.0), num(3.21e-9), num(0)
    ('0.0123', '12,300', '3.2e-09', '0')
    """
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{float(f'{value:.3g}'):,g}"


def percent(share: float) -> str:
    """
    >>> percent(0.1234), percent(0.00042)
    ('12.3 %', '0.042 %')
    """
    return f"{num(100 * share)} %"


def count(n: int, singular: str, many: str | None = None) -> str:
    """
    >>> count(1, "layer"), count(1200, "layer"), count(2, "entry", "entries")
    ('1 layer', '1,200 layers', '2 entries')
    """
    return f"{n:,} {singular if n == 1 else many or singular + 's'}"


def listed(names: Sequence[str], limit: int) -> str:
    """
    >>> listed(["a", "b", "c"], 2), listed(["a", "b", "c"], 3), listed(["a"], 2)
    ('a, b and 1 more', 'a, b and c', 'a')
    """
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def between(first: int, last: int) -> str:
    """
    >>> between(10, 10), between(10, 4000)
    ('step 10', 'steps 10 to 4,000')
    """
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def as_number(name: str) -> float:
    """The number that a name is; infinity for other names, so that they come last when sorted."""
    try:
        return float(name)
    except ValueError:
        return math.inf


def capital(text: str) -> str:
    """The first letter large, the others as they are. Not for names: those are case-sensitive."""
    return text[:1].upper() + text[1:]
