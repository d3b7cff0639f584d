"""Writing pages: of one run, and of several."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from learnscope.record import Finding
from learnscope.report.page.html import write_page
from learnscope.report.page.packing import Columns
from learnscope.report.page.runs import runs_payload
from learnscope.report.page.training import run_payload
from learnscope.store.reader import RunReader

FILE = "report.html"


def write_run(reader: RunReader, findings: Sequence[Finding], folder: Path, *, name: str) -> Path:
    """Write `report.html` of one run into `folder`."""
    columns = Columns()
    body = run_payload(columns, reader, findings, name=name)
    return write_page(folder / FILE, columns.pack(body), body)


def write_runs(
    runs: Mapping[str, tuple[RunReader, Sequence[Finding]]], folder: Path, *, name: str, broken: Mapping[str, str]
) -> Path:
    """Write `report.html` of several runs, by their names; `broken` are those that could not be read, and why."""
    columns = Columns()
    body = runs_payload(columns, runs, name=name, broken=broken)
    for row in body["runs"]:
        own = Path(row["path"] or "") / "report" / FILE
        row["report"] = quote(os.path.relpath(own, folder)) if row["path"] and own.is_file() else None
    return write_page(folder / FILE, columns.pack(body), body)
