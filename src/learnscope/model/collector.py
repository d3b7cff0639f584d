"""Python's garbage collector, which looks at all that a process holds whenever enough has been made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 2**30
"""Collections of what was made lately before one of all."""


@contextmanager
def no_collection() -> Iterator[None]:
    """The garbage collector is off meanwhile."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def no_full_collection() -> Iterator[None]:
    """It looks only at what was made lately: for minutes of work in which hardly anything lives long."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
