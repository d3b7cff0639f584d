"""The files that this process holds open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_under(folder: Path) -> list[str]:
    """The open files in a folder, by name: of other tests' files, the garbage collector may close some at any time."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if Path(name).is_relative_to(folder.resolve())]
