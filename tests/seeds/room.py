"""Where a block of the documents runs, and what it is given there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Names = dict[str, Any]


@dataclass
class Room:
    """A block runs in `folder`, with what it prints at hand."""

    folder: Path
    printed: Callable[[], str]


Fixture = Callable[[Room], AbstractContextManager[Names]]
