"""A kind of figure that a report may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Panel:
    """A kind of figure: its file, what it is, and how to read it."""

    file: str
    title: str
    reading: str
    draw: Callable[[RunReader], Figure | None]
    note: Callable[[RunReader], str] = field(default=lambda _: "")
    """What to say about the figure of this run."""
