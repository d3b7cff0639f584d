"""A progress bar for what takes long: on a terminal, and not before two seconds have passed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

PATIENCE = 2.0


@contextmanager
def progress_bar(
    title: str, *, show: bool = True, console: Console | None = None
) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how much is done, of how much; the bar goes when the block ends."""
    console = console or Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not (show and console.is_terminal))
    began = time.monotonic()
    line = bar.add_task(title, total=None)
    started = False

    def update(done: int, total: int) -> None:
        nonlocal started
        if not started and time.monotonic() - began < PATIENCE:
            return
        if not started:
            bar.start()
            started = True
        bar.update(line, completed=done, total=total)

    try:
        yield update
    finally:
        if started:
            bar.stop()
