"""`learnscope demo`, `compare` and `compact`: commands that make, read or rewrite run folders."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from learnscope.characters import visible
from learnscope.cli.commands import command
from learnscope.progress import progress_bar


def add_demo(commands: Any) -> None:
    demo = command(
        commands, "demo", _demo, "train five small models under watch and show what is found in each",
        "Trains five small models on the CPU, one healthy, three broken on purpose and one that groks, into folders "
        "below --out, and shows what is found in each: the quickest way to see what a run holds. Runs of an earlier "
        "demo there are made again; anything else in their place is left alone and refused.",
        "examples:\n  learnscope demo --quick\n  learnscope demo --out runs/demo\n"
        "  learnscope report runs/demo/nan  the report of one of them again",
    )  # fmt: skip
    demo.add_argument(
        "--out", metavar="DIR", default="runs/demo", help="folder for the five run folders (default: %(default)s)"
    )
    demo.add_argument("--quick", action="store_true", help="fewer steps: seconds instead of a minute or so")


def _demo(args: argparse.Namespace) -> int:
    from learnscope.demo import run_demo

    return int(run_demo(Path(args.out), quick=args.quick))


def add_compare(commands: Any) -> None:
    compare = command(
        commands, "compare", _compare, "what was set differently in two or more runs, and where they part",
        "Compares run folders, each with the first: settings that differ, the first step at which a recorded number "
        "does, last values, and the distance of the weights where the runs kept any (w.save_state()). Needs torch for "
        "the weights only. Writes nothing without --out.",
        "examples:\n  learnscope compare runs/a runs/b\n"
        "  learnscope compare runs/a runs/b runs/c --out runs/compared\n"
        "  learnscope compare runs/a runs/b --metric loss --tolerance 1e-6\n"
        "  learnscope compare runs/a runs/b --json | jq .partings",
    )  # fmt: skip
    compare.add_argument("runs", metavar="RUN", nargs="+", help="run folders: what ls.watch(..., run=RUN) wrote")
    compare.add_argument("--out", metavar="DIR", help="write compare.html, compare.md, compare.json and figures there")
    compare.add_argument(
        "--tolerance", metavar="X", type=float, default=0.0,
        help="relative difference up to which two values are the same (default: 0, the same bits)",
    )  # fmt: skip
    compare.add_argument(
        "--metric", metavar="NAME", action="extend", nargs="+", help="compare these quantities only: loss, norm, …"
    )
    compare.add_argument("--json", action="store_true", help="print JSON and nothing else")


def _compare(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.comparison import compare

    comparison = compare(args.runs, metrics=args.metric, tolerance=args.tolerance)
    written = comparison.save(args.out) if args.out is not None else None
    page = comparison.page(args.out) if args.out is not None else None
    if args.json:
        print(json.dumps(comparison.to_json(), indent=1, allow_nan=False))
        return 0
    from learnscope.comparison.terminal import print_comparison

    where = "which --out DIR writes" if written is None else f"in {written.name}"
    print_comparison(comparison, Console(highlight=False), where)
    if written is not None:
        print(f"written: {written}\npage: {page}")
    return 0


def add_compact(commands: Any) -> None:
    compact = command(
        commands, "compact", _compact, "a finished run's records as Parquet: smaller, and faster to read",
        "Turns records.jsonl of finished runs into records.parquet and removes it, once every record has been read "
        "back and compared. Everything that reads runs reads both. A run that is being written is refused. Needs no "
        "torch, but the packages of learnscope[sql].",
        "examples:\n  learnscope compact runs/a\n  learnscope compact runs/*           all runs there\n"
        "  learnscope compact runs/a --killed  also if its process was killed and could not mark the run as ended",
    )  # fmt: skip
    compact.add_argument("runs", metavar="RUN", nargs="+", help="a run folder, or a folder that contains some")
    compact.add_argument("--killed", action="store_true", help="also runs whose process was killed")


def _compact(args: argparse.Namespace) -> int:
    from learnscope.store.compact import compact
    from learnscope.store.folders import find_runs

    for folder in find_runs(args.runs):
        with progress_bar(f"compacting {folder}") as progress:
            info = compact(folder, killed=args.killed, progress=progress)
        print(visible(str(info)))
    return 0
