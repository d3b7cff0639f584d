"""Refusing wrong options, names and numbers, with a suggestion."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def nearest(name: Any, choices: Iterable[Any], most: int = 1) -> list[str]:
    """The choices that are spelt most like `name`, the nearest first; empty if none is near."""
    return difflib.get_close_matches(str(name), [str(choice) for choice in choices], n=most)


def did_you_mean(name: Any, choices: Iterable[Any]) -> str:
    """A sentence with the choice nearest to `name`, with a space before it; empty if none is near.

    >>> did_you_mean("evry", ["every", "at"]), did_you_mean("x", ["every"])
    (" Did you mean 'every'?", '')
    """
    near = nearest(name, choices)
    return f" Did you mean {near[0]!r}?" if near else ""


def unknown_option(owner: str, option: str, options: Iterable[str]) -> TypeError:
    """The error for `option`, which names the options that `owner` has."""
    options = list(options)
    hint = did_you_mean(option, options)
    return TypeError(f"{owner} has no option {option!r}.{hint} Its options: {', '.join(options) or 'none'}.")


def explain_options(function: Callable[P, R], owner: str | None = None) -> Callable[P, R]:
    """`function`, refusing unknown keywords with a suggestion instead of Python's bare sentence."""
    options = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for option in kwargs:
            if option not in options:
                raise unknown_option(owner or function.__name__, option, options)
        return function(*args, **kwargs)

    return checked


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """`value` as an integer from `least` on; NumPy's integers count."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: a whole number is needed") from None
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name}={value!r}: a whole number from {least} is needed")
    return number


def is_whole(value: Any, least: int = 0) -> bool:
    """Whether `value` is a Python integer from `least` on, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_whole(owner: Any, **least: int) -> None:
    """Refuse options of a dataclass that are no whole numbers from their least on; None is fine as a default."""
    for name, low in least.items():
        value = getattr(owner, name)
        if not is_whole(value, low) and not (value is None and owner.__dataclass_fields__[name].default is None):
            raise ValueError(f"{type(owner).__name__}({name}={value!r}): {name} is a whole number from {low}")


def known_name(what: str, name: Any, choices: Iterable[Any]) -> None:
    """Refuse a name that is not among the choices, with the nearest and all of them."""
    choices = list(choices)
    if name not in choices:
        hint = did_you_mean(name, choices)
        raise ValueError(f"{what} {name!r} is not known.{hint} Known: {', '.join(map(str, choices)) or 'none'}.")
