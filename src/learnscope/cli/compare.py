"""`learnscope compare`"""

from __future__ import annotations

import argparse
import json
from typing import Any

from learnscope.cli.commands import command


def add(commands: Any) -> None:
    """Declare the command."""
    compare = command(
        commands, "compare", run, "what was set differently in two or more runs, and where they part",
        "Compares run folders, each with the first: settings that differ, the first step at which a recorded number "
        "does, last values, and the distance of the weights where the runs kept any (w.save_state()). Needs torch for "
        "the weights only. Writes nothing without --out.",
        "examples:\n  learnscope compare runs/a runs/b\n"
        "  learnscope compare runs/a runs/b runs/c --out runs/compared\n"
        "  learnscope compare runs/a runs/b --metric loss --tolerance 1e-6\n"
        "  learnscope compare runs/a runs/b --json | jq .partings",
    )  # fmt: skip
    compare.add_argument("runs", metavar="RUN", nargs="+", help="run folders: what ls.watch(..., run=RUN) wrote")
    compare.add_argument("--out", metavar="DIR", help="write compare.md, compare.json and figures there")
    compare.add_argument(
        "--tolerance", metavar="X", type=float, default=0.0,
        help="relative difference up to which two values are the same (default: 0, the same bits)",
    )  # fmt: skip
    compare.add_argument(
        "--metric", metavar="NAME", action="extend", nargs="+", help="compare these quantities only: loss, norm, …"
    )
    compare.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.comparison import compare

    compared = compare(args.runs, metrics=args.metric, tolerance=args.tolerance)
    written = compared.save(args.out) if args.out is not None else None
    if args.json:
        print(json.dumps(compared.to_json(), indent=1, allow_nan=False))
        return 0
    from learnscope.comparison.terminal import print_comparison

    console = Console(highlight=False)
    print_comparison(compared, console, "which --out DIR writes" if written is None else f"in {written.name}")
    if written is not None:
        console.print(f"written: {written}", markup=False, soft_wrap=True)
    return 0
