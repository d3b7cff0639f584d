"""`learnscope checks` and `acknowledge`: what was checked in a run, and findings that a project accepts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from learnscope.cli.commands import command

if TYPE_CHECKING:
    from learnscope.record import Finding


def add_judging(parser: argparse.ArgumentParser) -> None:
    """The options of commands that may fail a pipeline."""
    parser.add_argument(
        "--acknowledged", metavar="FILE", help="accepted findings (default: the nearest .learnscope/acknowledged.toml)"
    )
    parser.add_argument(
        "--fail-on", choices=("warning", "critical"),
        help="exit with 1 if a finding is this grave or graver and not acknowledged",
    )  # fmt: skip


def exit_code(findings: Sequence[Finding], fail_on: str | None) -> int:
    """1 if a finding that is not acknowledged is as grave as `fail_on`."""
    grave = {"warning": ("warning", "critical"), "critical": ("critical",), None: ()}[fail_on]
    return int(any(finding.severity in grave and finding.acknowledged is None for finding in findings))


def add_checks(commands: Any) -> None:
    checks = command(
        commands, "checks", _checks, "what was checked in a run, and what was not and why",
        "Lists every check with its state: passed, failed, not measured (with the reason and how to measure it next "
        "time), or not applicable. Writes nothing. Needs neither torch nor the model.",
        "examples:\n  learnscope checks runs/a\n  learnscope checks runs/a --fail-on critical  for a pipeline",
    )  # fmt: skip
    checks.add_argument("run", metavar="RUN", help="a run folder: what ls.watch(..., run=RUN) wrote")
    add_judging(checks)


def _checks(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.report.terminal import print_checks
    from learnscope.run import open_run

    run = open_run(args.run)
    print_checks(run.checks(), Console(highlight=False))
    return exit_code(run.findings(acknowledged=args.acknowledged), args.fail_on)


def add_acknowledge(commands: Any) -> None:
    accept = command(
        commands, "acknowledge", _acknowledge, "accept a finding, with the reason, in a file of the project",
        "Writes the finding's fingerprint and the reason into .learnscope/acknowledged.toml: of this folder, or of the "
        "nearest one above it that has such a file. Acknowledged findings are listed last and fail no pipeline.",
        "examples:\n  learnscope acknowledge runs/a 3f2a90c1d4e7 --why 'the encoder is frozen on purpose'",
    )  # fmt: skip
    accept.add_argument("run", metavar="RUN", help="a run folder that has the finding")
    accept.add_argument("fingerprint", metavar="FINGERPRINT", help="as `learnscope report RUN` prints it")
    accept.add_argument("--why", metavar="TEXT", required=True, help="the reason")
    accept.add_argument("--acknowledged", metavar="FILE", help="the file to write (default: see above)")


def _acknowledge(args: argparse.Namespace) -> int:
    from learnscope.findings import find
    from learnscope.findings.acknowledged import acknowledge
    from learnscope.record.finding import with_taken_in
    from learnscope.run import open_run
    from learnscope.store.backend import RunError

    found = {finding.fingerprint: finding for finding in with_taken_in(find(open_run(args.run)))}
    if args.fingerprint not in found:
        known = "".join(f"\n  {fingerprint}  {finding.title}" for fingerprint, finding in found.items())
        raise RunError(f"{args.run} has no finding {args.fingerprint}; it has:{known or ' none'}")
    print(f"acknowledged in {acknowledge(found[args.fingerprint], args.why, args.acknowledged)}")
    return 0
