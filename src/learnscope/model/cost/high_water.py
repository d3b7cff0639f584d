"""The high-water mark of a process's memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


class NoHighWaterMark(RuntimeError):
    """The system does not tell it, or does not let it be set back; the message says which."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Bytes in memory before something ran, and the most while it did."""

    before: int
    peak: int


def peak_of(run: Callable[[], Any]) -> Marks:
    """What `run` brings the process's memory to, its high-water mark being set back to what is used before."""
    gc.collect()
    give_back()
    try:
        CLEAR.write_text("5")
    except OSError as error:
        raise NoHighWaterMark(f"the high-water mark of the memory cannot be set back ({error})") from error
    before = kilobytes("VmRSS") * 1024
    result = run()
    peak = kilobytes("VmHWM") * 1024
    del result  # held until here: what a pass returns belongs to its peak
    return Marks(before, peak)


def most_so_far() -> int:
    """Bytes of the most memory that the process has had since it began."""
    import resource

    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024  # kilobytes, but on macOS


def kilobytes(name: str) -> int:
    """A line of the process's status: `VmRSS` is what it has in memory, `VmHWM` the most that it had."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError as error:
        raise NoHighWaterMark(f"the system does not tell how much memory a process has ({error})") from error
    for line in lines:
        if line.startswith(f"{name}:"):
            number, unit = line.split()[1:3]
            if unit == "kB":
                return int(number)
    raise NoHighWaterMark(f"the process's status has no line {name}")


def give_back() -> None:
    """Have the allocator return what it holds but does not use: a pass would be served from it unseen."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc: it has none to return, or does so itself
        return
