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
        # of a copy: one may be lost meanwhile
        return iter([listener for held in tuple(self._held) if (listener := held()) is not None])

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


_gone: list[Callable[[], object]] = []
"""What removes the hooks of sessions that are gone, and waits for a moment at which none is being called."""


def until_gone(owner: object, remove: Callable[[], object]) -> Callable[[], object]:
    """`remove`, which is called once: by whoever calls what is returned, or some time after `owner` is gone.

    It is for hooks of optimizers, which must do nothing without their owner: see `remove_later`.
    """
    finalizer = weakref.finalize(owner, remove_later, remove)
    finalizer.atexit = False

    def remove_now() -> None:
        if finalizer.detach() is not None:
            remove()

    return remove_now


def remove_later(remove: Callable[[], object]) -> None:
    """Remove a hook when the next session opens or closes.

    The garbage collector may find a session gone at any moment, also while torch goes through the hooks of an
    optimizer: one that is removed then ends the training ("OrderedDict mutated during iteration").
    """
    _gone.append(remove)


def remove_gone() -> None:
    """Remove the hooks that wait for it; not to be called from a hook."""
    while _gone:
        _gone.pop()()
