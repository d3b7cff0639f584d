"""Options of the package's probes of a wrong type, refused by their names."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_PLAIN: dict[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "a text", types.NoneType: "None",
}  # fmt: skip


def check_types(owner: Any) -> None:
    """Raise a ValueError that names the first field of a dataclass whose value is not of its annotated type.

    Numbers of NumPy are numbers, NaN is none, and any collection of such is a sequence of them.
    """
    for name, hint in _hints(type(owner)).items():  # type: ignore[arg-type]  # a class is hashable
        value = getattr(owner, name)
        if not fits(value, hint):
            raise ValueError(f"{type(owner).__name__}({name}={value!r}): {name} is {_in_words(hint)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type.

    >>> fits(3, int | None), fits("3", float), fits([1, 2.5], list[float]), fits("abc", list[str])
    (True, False, True, False)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, kind) for kind in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is Callable:
        return callable(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if isinstance(origin, type) and issubclass(origin, Collection):
        return _is_collection_of(value, origin, inner)
    return _is_plain(value, hint)


def _is_collection_of(value: Any, origin: type, inner: tuple[Any, ...]) -> bool:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        return False
    try:
        items = list(value)
    except TypeError:  # an array without dimensions
        return False
    if origin is tuple and Ellipsis not in inner:
        return len(items) == len(inner) and all(map(fits, items, inner))
    return all(fits(item, inner[0]) for item in items)


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is bool:
        return isinstance(value, Integral) and value in (0, 1)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    if kind is str:
        return isinstance(value, str | PathLike)
    return True if kind is Any or not isinstance(kind, type) else isinstance(value, kind)


def _in_words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(_in_words(kind) for kind in inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is Callable:
        return "a function"
    if origin is tuple:
        return f"{len(inner)} values, each {_in_words(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a dictionary"
    if isinstance(origin, type) and issubclass(origin, Collection):
        return f"a list, each entry {_in_words(inner[0])}"
    return _PLAIN.get(hint, str(hint))


@functools.cache
def _hints(owner: type) -> dict[str, Any]:
    hints = get_type_hints(owner)
    return {field.name: hints[field.name] for field in fields(owner)}
