"""Who is told of calls inside torch, held weakly.

A session that nobody closed is kept alive by the hooks of its optimizer, and by nothing of ours: when model and
optimizer are gone, as when a cell of a notebook is run again, it goes with them, and torch's own functions are back in
their places.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, Generic, TypeVar

L = TypeVar("L", bound=Callable[..., Any])


class Listeners(Generic[L]):
    """`begin` is called before the first listener is added, and `end` when the last one is gone.

    A listener is a method, which lives as long as its object, or a function that somebody else holds.
    """

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._begin, self._end = begin, end
        self._held: list[weakref.ref[Any]] = []

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[L]:
        return iter([listener for held in self._held if (listener := held()) is not None])

    def add(self, listener: L) -> None:
        if not self._held:
            self._begin()
        self._held.append(
            weakref.WeakMethod(listener, self._lost)
            if isinstance(listener, MethodType)
            else weakref.ref(listener, self._lost)
        )

    def remove(self, listener: L) -> None:
        held = next((held for held in self._held if held() == listener), None)
        if held is not None:
            self._lost(held)

    def _lost(self, held: weakref.ref[Any]) -> None:
        if held in self._held:
            self._held.remove(held)
            if not self._held:
                self._end()


def until_gone(owner: object, remove: Callable[[], object]) -> Callable[[], object]:
    """`remove`, which is called once: by whoever calls what is returned, or when `owner` is gone."""
    finalizer = weakref.finalize(owner, remove)
    finalizer.atexit = False
    return finalizer
