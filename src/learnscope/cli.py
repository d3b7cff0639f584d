"""The `learnscope` command."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 0 if it worked, 2 if it could not be done as asked."""
    parser = _parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else 2
    if args.command is None:
        parser.print_help()
        return 0
    # imported here: a report must not wait for torch, and --help for neither
    from learnscope.store.backend import RunError

    try:
        return int(args.action(args))
    except (RunError, OSError) as error:
        print(f"learnscope {args.command}: {_one_line(error)}", file=sys.stderr)
        return 2


def _report(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.report.terminal import print_findings
    from learnscope.run import open_run

    run = open_run(args.run)
    findings = run.findings()
    report = run.report(args.out, findings=findings)
    console = Console(highlight=False)
    print_findings(findings, console)
    console.print(f"report: {report}", markup=False, soft_wrap=True)
    return 0


def _demo(args: argparse.Namespace) -> int:
    from learnscope.demo import run_demo

    return int(run_demo(Path(args.out), quick=args.quick))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="learnscope",
        description="Records what happens inside a PyTorch model while it trains, and examines what comes out.",
        epilog="examples:\n  learnscope demo                  train five small models and see what is found\n"
        "  learnscope report runs/a         findings and figures of a run folder\n\n"
        "`learnscope COMMAND --help` says more about each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"learnscope {version('learnscope')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    report = _command(
        commands, "report", _report, "findings and figures of a run folder",
        "Reads a run folder, also while it is being written, and writes report.md with its figures. Prints what was "
        "found, the gravest first. Needs neither torch nor the model.",
        "examples:\n  learnscope report runs/a               writes runs/a/report/report.md\n"
        "  learnscope report runs/a --out /tmp/r  writes there, and nothing into the run folder",
    )  # fmt: skip
    report.add_argument("run", metavar="RUN", help="a run folder: what ls.watch(..., run=RUN) wrote")
    report.add_argument("--out", metavar="DIR", help="where to write the report (default: RUN/report)")
    demo = _command(
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
    return parser


def _command(
    commands: Any, name: str, action: Any, summary: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=textwrap.fill(description, 90), epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(action=action)
    return parser


class _Parser(argparse.ArgumentParser):
    """An argument parser that says which command was probably meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = list(action.choices or [])
        if action.choices is not None and value not in choices:
            close = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(map(str, choices))}"
            raise argparse.ArgumentError(None, f"there is no command '{value}'; {hint}")


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or ''}: {error.strerror}".lstrip(": ")
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
