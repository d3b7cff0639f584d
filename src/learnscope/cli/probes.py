"""`learnscope probes`"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from learnscope.cli.commands import command

if TYPE_CHECKING:
    from rich.console import Console


def add(commands: Any) -> None:
    """Declare the command."""
    probes = command(
        commands, "probes", run, "which probes there are, what they need, take and record",
        "Lists the probes: when each looks by default, what it needs, what a firing takes, and the names that it "
        "records. With names of probes, tells what each recorded name means.",
        "examples:\n  learnscope probes                      all of them, a line each\n"
        "  learnscope probes GradientFlow         the names of one, with their formulas\n"
        "  learnscope probes --from my_probes.py  those of a file or module of yours as well\n"
        "  learnscope probes --run runs/a         those that a run has, your own included, with what they recorded\n"
        "  learnscope probes --json               all there is to know, for other programs",
    )  # fmt: skip
    probes.add_argument("names", metavar="PROBE", nargs="*", help="a probe to say more about")
    probes.add_argument("--from", dest="source", metavar="FILE", help="a Python file or module with probes of your own")
    probes.add_argument("--run", dest="folder", metavar="RUN", help="a run folder: what was recorded there")
    probes.add_argument("--json", action="store_true", help="print JSON instead")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from learnscope.options import known_name

    if args.folder:
        from learnscope.reading.recorded import recorded_probes

        entries = recorded_probes(args.folder)
    else:
        from learnscope.probes import all_probes
        from learnscope.probes.catalogue import entry, import_probes

        if args.source:
            import_probes(args.source)
        entries = [entry(probe) for probe in all_probes()]
    known = [shown["probe"] for shown in entries]
    for name in args.names:
        try:
            known_name("the probe", name, known)
        except ValueError as error:
            raise OSError(str(error)) from None
    chosen = [shown for shown in entries if not args.names or shown["probe"] in args.names]
    if args.json:
        print(json.dumps(chosen, indent=1, ensure_ascii=False))
        return 0
    console = Console(highlight=False)
    if args.names:
        for shown in chosen:
            _one(console, shown)
    else:
        _all(console, chosen)
    return 0


def _all(console: Console, entries: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("probe", "looks", "needs", "a firing takes", "records"):
        table.add_column(column, overflow="fold")
    for shown in entries:
        table.add_row(shown["probe"], shown["looks"], ", ".join(shown["needs"]), shown["cost"] or "", _names(shown))
    console.print(table)
    console.print("\nlearnscope probes PROBE says what each name means.", markup=False)


def _names(shown: dict[str, Any]) -> str:
    from learnscope.reading.words import listed

    if shown["names"] is None:
        return "(not declared: `--run` shows what a run has)"
    return listed([quantity["name"] for quantity in shown["names"]], 5)


def _one(console: Console, shown: dict[str, Any]) -> None:
    from rich.table import Table

    console.print(f"[bold]{shown['probe']}[/bold]: {shown['summary']}")
    facts = [f"looks {shown['looks']}"]
    facts += [f"needs {', '.join(shown['needs'])}"] if shown["needs"] else []
    facts += [f"a firing takes {shown['cost']}"] if shown["cost"] else []
    console.print("; ".join(facts), markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "of", "labels", "meaning"):
        table.add_column(column, overflow="fold")
    for quantity in shown["names"] or []:
        when = f"{quantity['when']}: " if quantity.get("when") else ""
        source = f" ({quantity['source']})" if quantity.get("source") else ""
        meaning = f"{when}{quantity.get('meaning', '')}{source}"
        table.add_row(quantity["name"], ", ".join(quantity["kinds"]), ", ".join(quantity.get("labels", {})), meaning)
    console.print(table)
    console.print()
