"""`learnscope demo`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from learnscope.cli.commands import command


def add(commands: Any) -> None:
    demo = command(
        commands, "demo", run, "train five small models under watch and show what is found in each",
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


def run(args: argparse.Namespace) -> int:
    from learnscope.demo import run_demo

    return int(run_demo(Path(args.out), quick=args.quick))
