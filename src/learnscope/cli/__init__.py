"""The `learnscope` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from learnscope.cli import audit, checks, importing, patch, probes, query, report, runs, train, view
from learnscope.cli.commands import fail
from learnscope.options import nearest


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 if it worked, 1 for what --fail-on names, 2 if it could not be done."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["train"]:  # it has its own parser, for files and sections
        return train.main(arguments[1:])
    parser = _parser()
    try:
        args = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed why
        return stop.code if isinstance(stop.code, int) else 2
    if args.command is None:
        parser.print_help()
        return 0
    # imported here: --help must not wait for it
    from learnscope.store.backend import RunError

    try:
        return int(args.action(args))
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 141
    except (RunError, OSError) as error:
        return fail(f"learnscope {args.command}", error)
    except KeyboardInterrupt:
        print(f"learnscope {args.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="learnscope",
        description="Records what happens inside a PyTorch model while it trains, and examines what comes out.",
        epilog="examples:\n  learnscope demo                  train five small models and see what is found\n"
        "  learnscope train                 train an adapter on a small model, tracked on request\n"
        "  learnscope audit                 examine a finished model: speed, bit widths, robustness\n"
        "  learnscope import wandb          runs of TensorBoard, wandb, the Trainer or a CSV file as runs\n"
        "  learnscope report runs/a         a page with the findings and figures of a run folder\n"
        "  learnscope view runs             the same page for all runs, live while they train\n"
        "  learnscope checks runs/a         what was checked, and what was not and why\n"
        "  learnscope acknowledge runs/a F  accept a finding, with the reason, in a file of the project\n"
        "  learnscope probes                which probes there are, and what they record\n"
        "  learnscope compare runs/a runs/b what was set differently, and where they diverge\n"
        "  learnscope query SQL runs        ask all runs in a folder\n"
        "  learnscope compact runs/a        its records as Parquet\n"
        "  learnscope patch OLD NEW         the sparse update between two checkpoints\n\n"
        "`learnscope COMMAND --help` says more about each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"learnscope {version('learnscope')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    first = (
        report.add_report,
        view.add,
        checks.add_checks,
        checks.add_acknowledge,
        runs.add_demo,
        train.add,
        importing.add,
        audit.add,
        probes.add,
    )
    for add in (*first, patch.add, runs.add_compare, query.add, runs.add_compact):
        add(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """Suggests the command that was probably meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = list(action.choices or [])
        if action.choices is not None and value not in choices:
            close = nearest(value, choices)
            hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(map(str, choices))}"
            raise argparse.ArgumentError(None, f"there is no command '{value}'; {hint}")
