"""Arrays that grow without a second copy of what they hold, where the system can move pages instead of bytes."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CAN_MOVE = sys.platform == "linux"
"""Elsewhere mapped memory cannot grow."""
RESERVED = 8
"""How much more addresses are mapped than are asked for: they take no memory, and growing within them moves nothing."""
_COLLAPSE = 25
"""MADV_COLLAPSE, which Python has no name for: pages that were moved become large ones again, since Linux 6.1."""


def room(capacity: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros, which take no memory until they are written."""
    if not _CAN_MOVE or not capacity:
        return np.zeros(capacity, dtype)
    for factor in _factors():
        # private: a process that is forked from this one gets memory of its own
        with suppress(OSError):  # no more maps or addresses; if there is no memory, NumPy says so
            pages = mmap.mmap(-1, factor * capacity * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return _over(pages, dtype, capacity)
    return np.zeros(capacity, dtype)


def resize(arrays: dict[str, NDArray[Any]], name: str, size: int, capacity: int) -> None:
    """Give an array room for so many rows. The first `size` stay as they are; the others were never written, and are 0.

    In a dictionary, as the memory can only be moved when nobody else looks at it. Where somebody does, or the system
    cannot move it, the rows are copied.
    """
    array = arrays.pop(name)
    dtype, pages = array.dtype, array.base.obj if isinstance(array.base, memoryview) else None
    if isinstance(pages, mmap.mmap) and capacity:
        del array
        moved = capacity * dtype.itemsize <= len(pages) or _moved(pages, size, capacity, dtype.itemsize)
        array = _over(pages, dtype, capacity if moved else size)
        if moved:
            arrays[name] = array
            return
    arrays[name] = room(capacity, dtype)
    arrays[name][:size] = array[:size]


def _moved(pages: mmap.mmap, size: int, capacity: int, itemsize: int) -> bool:
    """Whether the pages could be moved to where there is room."""
    for factor in _factors():
        with suppress(BufferError, OSError, SystemError, ValueError):
            pages.resize(factor * capacity * itemsize)
            with suppress(OSError):
                pages.madvise(_COLLAPSE, 0, size * itemsize)
            return True
    return False


def _over(pages: mmap.mmap, dtype: np.dtype[Any], capacity: int) -> NDArray[Any]:
    with suppress(AttributeError, OSError):  # where there are none
        pages.madvise(mmap.MADV_HUGEPAGE)  # rows are read at random: of small pages, each would be looked up
    return np.frombuffer(pages, dtype, capacity)


@cache
def _factors() -> tuple[int, ...]:
    """What is tried: where the system promises no more memory than it has, nothing is reserved."""
    try:
        strict = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        strict = True
    return (1,) if strict else (RESERVED, 1)
