"""The `learnscope` command."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from learnscope.model.patch_info import PatchInfo


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


def _patch(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.model.checkpoint import CheckpointError
    from learnscope.model.patch import export_patch
    from learnscope.model.patch_apply import apply_patch
    from learnscope.store.backend import RunError

    console = Console(highlight=False)
    try:
        if args.apply is not None:
            if args.new is not None or args.out is None:
                raise RunError("to apply a patch: learnscope patch --apply PATCH BASE -o OUT")
            with _late_progress("applying") as progress:
                made = apply_patch(args.old, args.apply, args.out, verify=not args.no_verify, progress=progress)
            console.print(f"written: {made}", markup=False, soft_wrap=True)
            return 0
        if args.new is None:
            raise RunError("to make a patch: learnscope patch OLD NEW -o PATCH")
        out = args.out or f"{Path(args.old).stem}-{Path(args.new).stem}.safetensors"
        with _late_progress("comparing tensors") as progress:
            info = export_patch(args.old, args.new, out, verify=not args.no_verify, progress=progress)
    except CheckpointError as error:  # caught here, since its module needs torch
        raise RunError(str(error)) from error
    _print_patch(info, console)
    return 0


def _print_patch(info: PatchInfo, console: Console, rows: int = 8) -> None:
    from rich.table import Table
    from rich.text import Text

    from learnscope.model.patch_info import share, size

    changed = sorted(
        (change for change in info.table if change.how != "same"),
        key=lambda change: (change.changed_share or 0.0, change.bytes), reverse=True,
    )  # fmt: skip
    table = Table("tensor", "how", box=None, header_style="bold", pad_edge=False)
    for title in ("entries", "changed", "bytes"):
        table.add_column(title, justify="right")
    for change in changed[:rows]:
        # Text, not markup: a name in square brackets is a name
        name, number = Text(change.name), f"{change.entries:,}"
        table.add_row(name, change.how, number, share(change.changed_share), size(change.bytes))
    if changed:
        console.print(table)
    if len(changed) > rows:
        console.print(f"and {len(changed) - rows} more")
    console.print(str(info), markup=False, soft_wrap=True)


@contextmanager
def _late_progress(what: str, after: float = 2.0) -> Iterator[Callable[[int, int], None]]:
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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="learnscope",
        description="Records what happens inside a PyTorch model while it trains, and examines what comes out.",
        epilog="examples:\n  learnscope demo                  train five small models and see what is found\n"
        "  learnscope report runs/a         findings and figures of a run folder\n"
        "  learnscope patch OLD NEW         the sparse update between two checkpoints\n\n"
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
    patch = _command(
        commands, "patch", _patch, "the sparse update between two checkpoints, or apply one",
        "Writes what turns checkpoint OLD into NEW, bit for bit, as a safetensors file, and says how small it is. "
        "With --apply, turns BASE, a checkpoint equal to OLD, into what NEW was. Checkpoints are .safetensors files "
        "or torch files with a state dictionary; no code of theirs is run.",
        "examples:\n  learnscope patch step100.safetensors step110.safetensors -o update.safetensors\n"
        "  learnscope patch --apply update.safetensors step100.safetensors -o step110.safetensors",
    )  # fmt: skip
    patch.usage = "learnscope patch OLD NEW [-o PATCH]\n       learnscope patch --apply PATCH BASE -o OUT"
    patch.add_argument("old", metavar="OLD", help="the checkpoint to start from (with --apply: BASE)")
    patch.add_argument("new", metavar="NEW", nargs="?", help="the checkpoint to arrive at")
    patch.add_argument("--apply", metavar="PATCH", help="apply this patch to BASE instead of making one")
    patch.add_argument("-o", "--out", metavar="FILE", help="what to write (default: OLD-NEW.safetensors)")
    patch.add_argument(
        "--no-verify", action="store_true",
        help="do not hash the checkpoints: faster, but a wrong base goes unnoticed",
    )  # fmt: skip
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
