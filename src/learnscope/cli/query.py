"""`learnscope query`"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

from learnscope.characters import visible
from learnscope.cli.commands import at_least_one, command, from_zero
from learnscope.record import plain_json

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 50


def add(commands: Any) -> None:
    query = command(
        commands, "query", run, "SQL over the records of one or many runs",
        "Answers one SELECT over the tables records (one row a number), events (one row a record) and runs (one row a "
        "run). Reads run folders, compacted or not, also while they are being written, and changes nothing. Needs no "
        "torch, but the packages of learnscope[sql].",
        "examples:\n"
        '  learnscope query "select probe, count(*) from records group by 1"\n'
        "  learnscope query \"select run, min(value) from records where name = 'loss' group by 1\" runs/a runs/b\n"
        "  learnscope query \"select step, labels['stage'] as stage, value from records where name = 'norm'\" "
        "runs/a --csv\n"
        '  learnscope query "select run, status, last_step from runs" \'runs/sweep-*\' --json\n'
        '  learnscope query "describe records"                    the columns of a table',
    )  # fmt: skip
    query.add_argument("sql", metavar="SQL", help="one SELECT statement")
    query.add_argument(
        "runs", metavar="RUNS", nargs="*", default=["runs"],
        help="run folders, folders that contain some, or quoted patterns (default: runs)",
    )  # fmt: skip
    form = query.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print all rows as CSV")
    form.add_argument("--json", action="store_true", help="print all rows as JSON")
    query.add_argument(
        "--limit", metavar="N", type=at_least_one, help=f"print at most N rows (default: {SHOWN} in a table, else all)"
    )
    query.add_argument(
        "--seconds", metavar="S", type=from_zero, default=60.0,
        help="stop a query that takes longer (default: %(default)g; 0 for no limit)",
    )  # fmt: skip
    query.add_argument(
        "--memory-mb", metavar="MB", type=at_least_one, default=2048,
        help="stop a query that needs more memory, for itself or for its result (default: %(default)s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from learnscope.store.query import query

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = query(args.sql, args.runs or ["runs"], seconds=args.seconds or None, memory_mb=args.memory_mb)
    for warning in caught:
        print(f"learnscope query: {visible(str(warning.message))}", file=sys.stderr)
    rows = answer if args.limit is None else answer.head(args.limit)
    if args.json:
        print(visible(json.dumps(_plain_rows(rows), indent=1, allow_nan=False, ensure_ascii=False)))
    elif args.csv:
        plain = rows.copy()  # numbers with all digits; maps and lists as JSON
        for name in rows.columns:
            if any(isinstance(value, dict | list) or hasattr(value, "tolist") for value in rows[name].head(1)):
                plain[name] = [json.dumps(_plain(value), ensure_ascii=False) for value in rows[name]]
        print(visible(plain.to_csv(index=False)), end="")
    else:
        _print_table(answer.head(SHOWN if args.limit is None else args.limit), len(answer))
    return 0


def _plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    names = list(frame.columns)
    return [dict(zip(names, map(_plain, row), strict=True)) for row in frame.itertuples(index=False, name=None)]


def _plain(value: Any) -> Any:
    """A value for JSON; null if it is missing or not finite."""
    return plain_json(value, other=_other)


def _other(value: Any) -> Any:
    import pandas as pd

    return None if value is pd.NA or value is pd.NaT else plain_json(value)


def _print_table(frame: pd.DataFrame, total: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # output for a program is not cut
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1_000_000)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, column in frame.items():
        table.add_column(
            Text(visible(str(name))), justify="right" if column.dtype.kind in "iuf" else "left", no_wrap=True
        )
    for row in _plain_rows(frame):
        table.add_row(*(Text(visible(_cell(value))) for value in row.values()))
    console.print(table)
    rows = "1 row" if total == 1 else f"{total:,} rows"
    console.print(rows if len(frame) == total else f"{len(frame):,} of {rows}; --limit N shows more")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"  # timestamps keep their digits
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
