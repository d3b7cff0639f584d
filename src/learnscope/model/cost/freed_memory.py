"""Memory that is freed after a pass and needed again in the next, kept meanwhile."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM, _MAP = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt."""
KEPT, LARGE = 2**29, 2**28
"""Bytes at the end of the heap that are kept, and of a block that is handed back as soon as it is freed."""
USUAL_KEPT, USUAL_LARGE = 2**26, 2**25
"""What glibc arrives at by itself in a process that frees large blocks."""


_open = 0
"""Blocks of `freed_memory_kept` that the process is in."""


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, glibc does not hand freed memory back to the system; afterwards it does, and hands back what it kept.

    The logits of a large vocabulary are some hundred megabytes in each of thousands of passes: to be given these as new
    pages every time takes a tenth of an audit. Not for timing: elsewhere a model runs without. Without glibc this does
    nothing.
    """
    library = ctypes.CDLL(None)
    if not (hasattr(library, "mallopt") and hasattr(library, "malloc_trim")):
        yield
        return
    global _open
    _open += 1
    library.mallopt(_TRIM, KEPT)
    library.mallopt(_MAP, LARGE)
    try:
        yield
    finally:
        _open -= 1
        if not _open:  # the outermost
            library.mallopt(_TRIM, USUAL_KEPT)
            library.mallopt(_MAP, USUAL_LARGE)
            library.malloc_trim(0)
