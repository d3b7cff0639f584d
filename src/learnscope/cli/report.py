"""`learnscope report`"""

from __future__ import annotations

import argparse
from typing import Any

from learnscope.cli.commands import command


def add(commands: Any) -> None:
    """Declare the command."""
    report = command(
        commands, "report", run, "findings and figures of a run folder",
        "Reads a run folder, also while it is being written, and writes report.md with its figures. Prints what was "
        "found, the gravest first. Needs neither torch nor the model.",
        "examples:\n  learnscope report runs/a               writes runs/a/report/report.md\n"
        "  learnscope report runs/a --out /tmp/r  writes there, and nothing into the run folder",
    )  # fmt: skip
    report.add_argument("run", metavar="RUN", help="a run folder: what ls.watch(..., run=RUN) wrote")
    report.add_argument("--out", metavar="DIR", help="where to write the report (default: RUN/report)")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.report.terminal import print_findings
    from learnscope.run import open_run

    report, findings = open_run(args.run).report_with_findings(args.out)
    console = Console(highlight=False)
    print_findings(findings, console)
    console.print(f"report: {report}", markup=False, soft_wrap=True)
    return 0
