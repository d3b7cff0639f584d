"""Refusing an option that does not exist, with the one that was probably meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def unknown_option(owner: str, option: str, known: Iterable[str]) -> TypeError:
    """The error for `option`, which names what `owner` does take."""
    known = list(known)
    close = difflib.get_close_matches(option, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
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
