"""`learnscope report`: a page, Markdown, figures or JSON of run folders."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learnscope.cli.checks import add_judging, exit_code
from learnscope.cli.commands import command

if TYPE_CHECKING:
    from learnscope.reading.gather import OnePass
    from learnscope.record import Finding
    from learnscope.run import Run

FORMATS = ("html", "markdown", "png", "json")


def add_report(commands: Any) -> None:
    report = command(
        commands, "report", _report, "a page with the findings and figures of a run folder",
        "Reads a run folder, also while it is being written, and writes report.html: one file that needs no network. "
        "Prints the findings, the most severe first. Several runs, or a folder that contains some, give one page of "
        "runs. Needs neither torch nor the model.",
        "examples:\n  learnscope report runs/a               writes runs/a/report/report.html\n"
        "  learnscope report runs/a --out /tmp/r  writes there, and nothing into the run folder\n"
        "  learnscope report runs                 one page of all runs there: runs/report.html\n"
        "  learnscope report runs/a --format markdown    report.md with its figures beside it\n"
        "  learnscope report runs/a --format json        printed, for scripts; see docs/guide.md\n"
        "  learnscope report runs/b --baseline runs/a --fail-on warning  for a pipeline",
    )  # fmt: skip
    report.add_argument("runs", metavar="RUN", nargs="+", help="run folders, or a folder that contains some")
    report.add_argument("--out", metavar="DIR", help="where to write the report (default: RUN/report)")
    report.add_argument(
        "--format", choices=FORMATS, default="html",
        help="html: one file (default); markdown: text with figures; png: figures alone; json: printed",
    )  # fmt: skip
    report.add_argument("--full", action="store_true", help="print all of every finding, not five lines of each")
    report.add_argument("--baseline", metavar="RUN2", help="an earlier run of the project: what is new, worse, gone")
    add_judging(report)


def _report(args: argparse.Namespace) -> int:
    from learnscope.cli.named import named_runs

    runs, broken = named_runs(args.runs)
    if len(runs) == 1 and not broken and len(args.runs) == 1 and runs[0].path == Path(args.runs[0]):
        return _of_one(args, runs[0])
    return _of_several(args, runs, broken)


def _of_one(args: argparse.Namespace, run: Run) -> int:
    from rich.console import Console

    from learnscope.findings.checks import checks_of
    from learnscope.report.terminal import print_findings

    records, findings = _read(args, run)
    if args.format == "json":
        return _print_json(args, records, findings)
    report, _ = run.report_with_findings(args.out, findings=findings, records=records, format=args.format)
    more = None if args.full else "Shortened: --full prints all of it, the page shows it."
    print_findings(findings, Console(highlight=False), checks_of(records), more=more)
    print(f"report: {report}")
    return exit_code(findings, args.fail_on)


def _read(args: argparse.Namespace, run: Run) -> tuple[OnePass, list[Finding]]:
    """The records, read once for findings, report and checks; and the findings."""
    from learnscope.reading.gather import one_pass
    from learnscope.run import findings_in, open_run

    records = one_pass(run)
    baseline = open_run(args.baseline) if args.baseline is not None else None
    return records, findings_in(records, baseline=baseline, acknowledged=args.acknowledged)


def _print_json(args: argparse.Namespace, records: OnePass, findings: Sequence[Finding]) -> int:
    from learnscope.report.as_json import report_json

    _say(args, report_json(records, findings, name=_name(args.runs[0])))
    return exit_code(findings, args.fail_on)


def _say(args: argparse.Namespace, body: dict[str, Any]) -> None:
    """To the terminal, or into `report.json` below --out."""
    from learnscope.store.files import write_json

    if args.out is None:
        print(json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False))
        return
    write_json(Path(args.out) / "report.json", body)
    print(f"report: {Path(args.out) / 'report.json'}")


def _name(path: str | Path) -> str:
    return Path(path).resolve().name


def _of_several(args: argparse.Namespace, runs: Sequence[Run], broken: dict[str, str]) -> int:
    from rich.console import Console

    from learnscope.report.as_json import report_json
    from learnscope.report.page.writing import write_runs
    from learnscope.report.terminal import print_runs
    from learnscope.store.backend import RunError

    if args.format not in ("html", "json"):
        raise RunError(f"--format {args.format} is for one run; there are {len(runs)} here: name one of them")
    folders = [run.path for run in runs if run.path is not None]
    above = (
        Path(args.runs[0]) if len(args.runs) == 1 else Path(os.path.commonpath([f.resolve().parent for f in folders]))
    )
    named = {_below(folder, above): run for folder, run in zip(folders, runs, strict=True)}
    read = {name: _read(args, run) for name, run in named.items()}
    found = [finding for _, findings in read.values() for finding in findings]
    if args.format == "json":
        bodies = [report_json(records, findings, name=name) for name, (records, findings) in read.items()]
        _say(args, {"schema": 1, "runs": bodies, "unreadable": broken})
        return exit_code(found, args.fail_on)
    page = write_runs(read, Path(args.out) if args.out else above, name=_name(above), broken=broken)
    print_runs({name: findings for name, (_, findings) in read.items()}, broken, Console(highlight=False))
    print(f"report: {page}")
    return exit_code(found, args.fail_on)


def _below(folder: Path, above: Path) -> str:
    return os.path.relpath(folder.resolve(), above.resolve())
