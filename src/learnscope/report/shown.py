"""A run as it shows itself: in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Callable

from learnscope.findings.checks import checks_of
from learnscope.reading.gather import one_pass
from learnscope.reading.words import count
from learnscope.record import Finding
from learnscope.record.display import badge, card, facts_line, one_line, safe
from learnscope.report.page.verdict import verdict_of
from learnscope.store.backend import FolderBackend, RunError
from learnscope.store.reader import RunReader

Judge = Callable[[RunReader], list[Finding]]
TOO_LARGE = 64 << 20
"""Bytes of records above which a run that is merely named in a terminal is not judged: that takes seconds."""


def _where(run: RunReader) -> str:
    return str(run.backend.path) if isinstance(run.backend, FolderBackend) else "in memory"


def _is_large(run: RunReader) -> bool:
    if not isinstance(run.backend, FolderBackend):
        return False
    files = [run.backend.path / name for name in ("records.jsonl", "records.parquet")]
    return sum(file.stat().st_size for file in files if file.is_file()) > TOO_LARGE


def run_line(run: RunReader, judge: Judge) -> str:
    """Name, status, steps and verdict; of a run that cannot be read, why."""
    try:
        if _is_large(run):
            return one_line(f"Run {_where(run)}", str(run.status), "large: run.findings() judges it")
        records = one_pass(run)
        verdict = verdict_of(records, judge(records), checks_of(records))
    except (RunError, OSError) as error:
        return one_line(f"Run {_where(run)}", str(error))
    steps = count(verdict["last_step"], "step")
    return one_line(f"Run {_where(run)}", verdict["status"], steps, verdict["sentence"])


def run_card(run: RunReader, judge: Judge) -> str:
    """The same with the findings, which open."""
    try:
        records = one_pass(run)
        findings = judge(records)
        verdict = verdict_of(records, findings, checks_of(records))
    except (RunError, OSError) as error:
        return card(f"<b>{safe(_where(run))}</b>", safe(error))
    best = verdict["best"]
    facts = [
        verdict["status"], count(verdict["last_step"], "step"),
        "" if best is None else f"best step {best['step']:,} ({best['text']})",
        "" if verdict["loss"] is None else f"training loss {verdict['loss'][0]} to {verdict['loss'][1]}",
    ]  # fmt: skip
    head = f"{badge(verdict['severity'])} <b>{safe(verdict['sentence'])}</b>"
    return card(f"<b>{safe(_where(run))}</b>", facts_line(facts), head, *(finding.as_html() for finding in findings))
