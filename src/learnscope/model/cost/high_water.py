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
    """The system does not report the mark, or does not let it be reset; the message says which."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Bytes in memory before a call, and the maximum during it."""

    before: int
    peak: int


def peak_of(run: Callable[[], Any]) -> Marks:
    """The high-water mark of the process's memory during `run`; it is reset before."""
    gc.collect()
    give_back()
    try:
        CLEAR.write_text("5")
    except OSError as error:
        raise NoHighWaterMark(f"the high-water mark of the memory cannot be set back ({error})") from error
    before = kilobytes("VmRSS") * 1024
    result = run()
    peak = kilobytes("VmHWM") * 1024
    del result  # held until here: the returned outputs belong to the peak
    return Marks(before, peak)


def most_so_far() -> int:
    """Maximum memory of the process since its start, in bytes."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # kilobytes, but on macOS


def kilobytes(name: str) -> int:
    """A line of the process's status: `VmRSS` is the current memory, `VmHWM` the maximum so far."""
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
    """Make the allocator return unused memory, since allocations from it would not raise the mark."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc: nothing to return, or it does so itself
        return
