"""What the commands share: how one is declared, and a progress bar."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def command(
    commands: Any, name: str, action: Any, summary: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    """Declare a command; the parser to which its arguments are added."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=textwrap.fill(description, 90), epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(action=action)
    return parser


@contextmanager
def late_progress(what: str, after: float = 2.0) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal for what takes longer than `after` seconds, gone when it is done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what)
    begun = time.monotonic()

    def show(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - begun > after:
            bar.start()  # does nothing if it has

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()
