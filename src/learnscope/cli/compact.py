"""`learnscope compact`"""

from __future__ import annotations

import argparse
from typing import Any

from learnscope.cli.commands import command
from learnscope.progress import progress_bar


def add(commands: Any) -> None:
    """Declare the command."""
    compact = command(
        commands, "compact", run, "a finished run's records as Parquet: smaller, and faster to read",
        "Turns records.jsonl of finished runs into records.parquet and removes it, once every record has been read "
        "back and compared. Everything that reads runs reads both. A run that is being written is refused. Needs no "
        "torch, but the packages of learnscope[sql].",
        "examples:\n  learnscope compact runs/a\n  learnscope compact runs/*           all runs there\n"
        "  learnscope compact runs/a --killed  also if its process was killed and could not say that it ended",
    )  # fmt: skip
    compact.add_argument("runs", metavar="RUN", nargs="+", help="a run folder, or a folder that contains some")
    compact.add_argument("--killed", action="store_true", help="also runs whose process was killed")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.store.compact import compact
    from learnscope.store.folders import find_runs

    console = Console(highlight=False)
    for folder in find_runs(args.runs):
        with progress_bar(f"compacting {folder}") as progress:
            info = compact(folder, killed=args.killed, progress=progress)
        console.print(str(info), markup=False, soft_wrap=True)
    return 0
