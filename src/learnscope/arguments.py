"""Arguments of the analyzers' calls, refused with what would be right."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any


def whole_number(name: str, given: Any, least: int = 0) -> int:
    """`given` as an integer from `least` on; whatever counts as one, such as NumPy's."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{name}={given!r}: a whole number is needed") from None
    if isinstance(given, bool) or number < least:
        raise ValueError(f"{name}={given!r}: a whole number from {least} is needed")
    return number


def known_name(what: str, given: Any, known: Iterable[Any]) -> None:
    """Refuse a name that is not among those known, with the nearest and all of them."""
    names = list(known)
    if given in names:
        return
    near = difflib.get_close_matches(str(given), [str(name) for name in names], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{what} {given!r} is not known.{hint} Known: {', '.join(map(str, names)) or 'none'}.")
