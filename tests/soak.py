"""The counts of the long tests, kept in docs/soak.json.

A test marked `soak` says what it has counted with pytest's `record_property("kills", 40)`. If it passes, the process
that reports the tests keeps this under the test's name, with the date and the machine: workers and several runs beside
each other may each do a part, and a test that is run again replaces its own counts. So a test over many seeds is cut
into pieces, `[0:250]`, `[250:500]`, …, and done in as many runs as it takes.

    python tests/soak.py     writes the totals into docs/guarantees.md
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from learnscope.store.files import write_text

KEPT = Path(__file__).parents[1] / "docs" / "soak.json"
PAGE = KEPT.with_name("guarantees.md")
BEGIN, END = "<!-- counted: written by tests/soak.py -->\n", "<!-- end of counted -->\n"
Counts = Mapping[str, int]
Body = dict[str, dict[str, dict[str, Any]]]
"""By the name of a test and by its parameters, `""` without any: the counts, seconds, date and machine."""


def machine() -> str:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    cores = f"{os.cpu_count()} cores"
    return f"{platform.system()} {platform.machine()}, {cores}, Python {platform.python_version()}, torch {torch}"


def read(path: Path = KEPT) -> Body:
    body: Body = json.loads(path.read_text()) if path.is_file() else {}
    return body


def keep(node: str, counts: Counts, seconds: float, path: Path = KEPT) -> None:
    """Put the counts of one test into the file, in place of those that it had."""
    test, _, case = node.removesuffix("]").partition("[")
    when = time.strftime("%Y-%m-%d", time.gmtime())
    entry = {**counts, "seconds": round(seconds), "date": when, "machine": machine()}
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others may be adding theirs
        body = read(path)
        body.setdefault(test, {})[case] = entry
        write_text(path, as_text(body))
    finally:
        os.close(lock)


def as_text(body: Body) -> str:
    """A line a case, sorted, so that two versions of the file are easily compared."""
    parts = []
    for test in sorted(body):
        entries = sorted(body[test].items(), key=_order)
        cases = [f"    {json.dumps(case)}: {json.dumps(entry)}" for case, entry in entries]
        parts.append(f"  {json.dumps(test)}: {{\n" + ",\n".join(cases) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _order(item: tuple[str, Any]) -> tuple[int, str]:
    """Ranges of seeds by their numbers, others by name."""
    start = item[0].rpartition("-")[2].partition(":")[0]
    return (int(start) if start.isdigit() else 0), item[0]


def totals(body: Body) -> dict[str, Counter[str]]:
    """The counts of each test over all its cases."""
    facts = ("seconds", "date", "machine")
    return {
        test: sum((Counter({k: v for k, v in e.items() if k not in facts}) for e in cases.values()), Counter[str]())
        for test, cases in body.items()
    }


def when(cases: Mapping[str, Mapping[str, Any]]) -> str:
    dates = sorted(entry["date"] for entry in cases.values())
    return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"


def table(body: Body) -> str:
    """What each test has counted in all, for the page."""
    lines = ["| counted | when | where |", "|---|---|---|"]
    for test, counts in sorted(totals(body).items()):
        numbers = ", ".join(f"{number:,} {name}" for name, number in counts.items())
        lines.append(f"| {numbers} | {when(body[test])} | `{test}` |")
    return "\n".join(lines) + "\n"


def with_table(page: str, body: Body) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table(body) + END + rest.partition(END)[2]


def write_page() -> None:
    """Write the totals into the page."""
    write_text(PAGE, with_table(PAGE.read_text(), read()))


if __name__ == "__main__":
    write_page()
