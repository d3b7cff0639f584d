"""`learnscope probes`"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from learnscope.cli.commands import command, fail

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def add(commands: Any) -> None:
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
        from learnscope.probes import all_probes, catalogue

        if args.source:
            catalogue.import_probes(args.source)
        entries = [catalogue.entry(probe) for probe in all_probes()]
    try:
        for name in args.names:
            known_name("the probe", name, [entry["probe"] for entry in entries])
    except ValueError as error:
        return fail("learnscope probes", error)
    chosen = [entry for entry in entries if not args.names or entry["probe"] in args.names]
    console = Console(highlight=False)
    if args.json:
        print(json.dumps(chosen, indent=1, ensure_ascii=False))
    elif args.names:
        for entry in chosen:
            _print_probe(console, entry)
    else:
        _print_list(console, chosen)
    return 0


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_list(console: Console, entries: list[dict[str, Any]]) -> None:
    from learnscope.reading.words import listed

    table = _table("probe", "looks", "needs", "a firing takes", "records")
    for entry in entries:
        names = "(not declared: `--run` shows what a run has)"
        if entry["names"] is not None:
            names = listed([quantity["name"] for quantity in entry["names"]], 5)
        table.add_row(entry["probe"], entry["looks"], ", ".join(entry["needs"]), entry["cost"] or "", names)
    console.print(table)
    print("\nlearnscope probes PROBE says what each name means.")


def _print_probe(console: Console, entry: dict[str, Any]) -> None:
    console.print(f"[bold]{entry['probe']}[/bold]: {entry['summary']}")
    facts = [f"looks {entry['looks']}"]
    facts += [f"needs {', '.join(entry['needs'])}"] if entry["needs"] else []
    facts += [f"a firing takes {entry['cost']}"] if entry["cost"] else []
    console.print("; ".join(facts), markup=False)
    table = _table("name", "of", "labels", "meaning")
    for quantity in entry["names"] or []:
        when = f"{quantity['when']}: " if quantity.get("when") else ""
        source = f" ({quantity['source']})" if quantity.get("source") else ""
        meaning = f"{when}{quantity.get('meaning', '')}{source}"
        table.add_row(quantity["name"], ", ".join(quantity["kinds"]), ", ".join(quantity.get("labels", {})), meaning)
    console.print(table)
    print()
