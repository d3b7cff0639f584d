"""Arrays that grow without a second copy of what they hold, where the system can move pages instead of bytes."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CAN_MOVE = sys.platform == "linux"
"""Elsewhere mapped memory cannot grow."""


def room(capacity: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros, which take no memory until they are written."""
    if not _CAN_MOVE or not capacity:
        return np.zeros(capacity, dtype)
    try:  # private: a process that is forked from this one gets memory of its own
        pages = mmap.mmap(-1, capacity * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # no more maps; if there is no memory, NumPy says so
        return np.zeros(capacity, dtype)
    return _over(pages, dtype)


def resize(arrays: dict[str, NDArray[Any]], name: str, size: int, capacity: int) -> None:
    """Give an array room for so many rows. The first `size` stay as they are; the others were never written, and are 0.

    In a dictionary, as the memory can only be moved when nobody else looks at it. Where somebody does, or the system
    cannot move it, the rows are copied.
    """
    array = arrays.pop(name)
    dtype, pages = array.dtype, array.base.obj if isinstance(array.base, memoryview) else None
    if isinstance(pages, mmap.mmap) and capacity:
        del array
        try:
            pages.resize(capacity * dtype.itemsize)
        except (BufferError, OSError, SystemError, ValueError):
            array = _over(pages, dtype)
        else:
            arrays[name] = _over(pages, dtype)
            return
    arrays[name] = room(capacity, dtype)
    arrays[name][:size] = array[:size]


def _over(pages: mmap.mmap, dtype: np.dtype[Any]) -> NDArray[Any]:
    with suppress(AttributeError, OSError):  # where there are none
        pages.madvise(mmap.MADV_HUGEPAGE)  # rows are read at random: of small pages, each would be looked up
    return np.frombuffer(pages, dtype)
