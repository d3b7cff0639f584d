"""Refusing an option, a name or a number that cannot be meant, with what would be right."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def nearest(given: Any, known: Iterable[Any], most: int = 1) -> list[str]:
    """The known names that are spelt most like `given`, the nearest first; none if none is near."""
    return difflib.get_close_matches(str(given), [str(name) for name in known], n=most)


def did_you_mean(given: Any, known: Iterable[Any]) -> str:
    """A sentence with the known name nearest to `given`, with a space before it; empty if none is near.

    >>> did_you_mean("evry", ["every", "at"]), did_you_mean("x", ["every"])
    (" Did you mean 'every'?", '')
    """
    near = nearest(given, known)
    return f" Did you mean {near[0]!r}?" if near else ""


def unknown_option(owner: str, option: str, known: Iterable[str]) -> TypeError:
    """The error for `option`, which names what `owner` does take."""
    known = list(known)
    hint = did_you_mean(option, known)
    return TypeError(f"{owner} has no option {option!r}.{hint} Its options: {', '.join(known) or 'none'}.")


def explain_options(function: Callable[P, R], owner: str | None = None) -> Callable[P, R]:
    """`function`, refusing unknown keywords with a suggestion instead of Python's bare sentence."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for option in kwargs:
            if option not in known:
                raise unknown_option(owner or function.__name__, option, known)
        return function(*args, **kwargs)

    return checked


def whole_number(name: str, given: Any, least: int = 0) -> int:
    """`given` as an integer from `least` on; whatever counts as one, such as NumPy's."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{name}={given!r}: a whole number is needed") from None
    if isinstance(given, bool) or number < least:
        raise ValueError(f"{name}={given!r}: a whole number from {least} is needed")
    return number


def is_whole(given: Any, least: int = 0) -> bool:
    """Whether `given` is an integer of Python's from `least` on; True and False are none."""
    return isinstance(given, int) and not isinstance(given, bool) and given >= least


def check_whole(owner: Any, **least: int) -> None:
    """Refuse options of a dataclass that are no whole numbers from their least on; None where it is the default."""
    for name, low in least.items():
        given = getattr(owner, name)
        if not is_whole(given, low) and not (given is None and owner.__dataclass_fields__[name].default is None):
            raise ValueError(f"{type(owner).__name__}({name}={given!r}): {name} is a whole number from {low}")


def known_name(what: str, given: Any, known: Iterable[Any]) -> None:
    """Refuse a name that is not among those known, with the nearest and all of them."""
    names = list(known)
    if given not in names:
        hint = did_you_mean(given, names)
        raise ValueError(f"{what} {given!r} is not known.{hint} Known: {', '.join(map(str, names)) or 'none'}.")
