"""Progress of slow work: a bar on a terminal, after two seconds; elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
PATIENCE = 2.0
LINES = 15.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def progress_bar(
    title: str, *, show: bool = True, console: Console | None = None, after: float | None = None
) -> Iterator[Callable[[int, int], None]]:
    """A function to call with the amount done and the total; the bar disappears when the block ends.

    Where the output is redirected, lines say how much is done and how long the rest will take.
    """
    # imported here, so that commands that show no bar start faster
    from rich.console import Console
    from rich.progress import Progress

    console = console or Console(stderr=True)
    shown = show and console.is_terminal
    bar = Progress(console=console, transient=True, disable=not shown)
    shown_from = time.monotonic() + (PATIENCE if after is None else after)
    line = bar.add_task(title, total=None)
    started = False
    began = time.monotonic()
    told = began

    def update(done: int, total: int) -> None:
        nonlocal started, told
        if show and not shown and (now := time.monotonic()) - told >= LINES and 0 < done < total:
            told = now
            left = (now - began) * (total - done) / done
            print(f"{title}: {done:,} of {total:,}, about {left:.0f} s left", file=console.file, flush=True)
        if not shown or (not started and time.monotonic() < shown_from):
            return  # rich before 14 ends a bar that is not shown with an empty line
        if not started:
            bar.start()
            started = True
        bar.update(line, completed=done, total=total)

    try:
        yield update
    finally:
        if started:
            bar.stop()


def tracked(items: Sequence[T], title: str, *, show: bool = True) -> Iterator[T]:
    """The items one by one, with a bar that shows how many are done."""
    with progress_bar(title, show=show) as update:
        for done, item in enumerate(items):
            update(done, len(items))
            yield item
