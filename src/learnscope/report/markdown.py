"""The report of a run: Markdown with figures beside it, readable as a file and on any forge."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from learnscope.findings.checks import Check, checks_of
from learnscope.reading.gather import OnePass, one_pass
from learnscope.reading.words import capital, count, listed
from learnscope.record import Finding
from learnscope.report.by_kind import FILES as LAYER_FILES
from learnscope.report.examples.texts import HEAD, example_texts
from learnscope.report.explanations import evidence_text, explanation, no_problems, symptoms
from learnscope.report.facts import costs, not_recorded, watched
from learnscope.report.layout import Panel, save
from learnscope.report.panels import PANELS, drawn
from learnscope.store.backend import FolderBackend
from learnscope.store.files import write_text
from learnscope.store.reader import RunReader


def write_report(reader: RunReader, findings: Sequence[Finding], target: Path, *, name: str) -> Path:
    run = one_pass(reader)
    panels = write_figures(run, target)
    path = target / "report.md"
    write_text(path, _text(run, findings, panels, name))
    return path


def write_figures(reader: RunReader, target: Path) -> list[Panel]:
    """Write a figure for every panel that the run has data for; those of an earlier report go."""
    run, panels = one_pass(reader), []
    for panel, figure in drawn(run):
        save(figure, target / panel.file)
        panels.append(panel)
    drawn_files = {panel.file for panel in panels}
    for file in {*(panel.file for panel in PANELS), *(path.name for path in target.glob(LAYER_FILES))} - drawn_files:
        (target / file).unlink(missing_ok=True)  # of an earlier report of this run, no longer true
    return panels


def _text(run: OnePass, findings: Sequence[Finding], panels: Sequence[Panel], name: str) -> str:
    checks = checks_of(run)
    summary = _summary(run, findings, checks)
    parts = [f"# Run {escape(name)}", summary, "## What was watched", table(("", ""), watched(run))]
    if panels:
        parts += [_image(panels[0], run)]
    if findings:
        parts += ["## Findings", *findings_text(findings)]
    if len(panels) > 1:
        parts += ["## Figures"]
        for panel in panels[1:]:
            parts += [f"### {panel.title}", _image(panel, run)]
    if texts := example_texts(run):
        parts += ["## Training examples", "Those to look at first:", table(HEAD, texts)]
    if rows := [check_line(check) for check in checks if check.state != "not applicable"]:
        parts += ["## Checks", table(("check", "state", "why", "how to enable"), rows)]
    missing = not_recorded(run)
    if missing:
        parts += [
            "## Not recorded",
            "What this run does not hold, and the probe that records it:",
            table(("probe", "records"), missing),
        ]
    lines = costs(run)
    head = ("probe", "firings", "mean ms", "total s", "share of wall time")
    parts += ["## What the probes cost", table(head, lines) if lines else "No probe fired."]
    parts += ["## Reading further", _further(run)]
    return "\n\n".join(parts) + "\n"


def _summary(run: RunReader, findings: Sequence[Finding], checks: Sequence[Check]) -> str:
    n = Counter(finding.severity if finding.acknowledged is None else "acknowledged" for finding in findings)
    parts = [count(n["critical"], "critical finding")] if n["critical"] else []
    parts += [count(n["warning"], "warning")] if n["warning"] else []
    parts += [f"{count(n['info'], 'finding')} for information"] if n["info"] else []
    parts += [count(n["acknowledged"], "acknowledged finding")] if n["acknowledged"] else []
    said = f"{listed(parts, len(parts))}." if parts else ""
    if n["critical"] or n["warning"]:
        return said
    records = int((~run.columns().heads.failed).sum())
    if not records and not findings:
        return "Nothing was recorded, so there is nothing to find."
    return f"{said} {escape(no_problems(checks))}".strip()


def check_line(check: Check) -> tuple[str, str, str, str]:
    """A check as a row of a table."""
    return check.name, check.state, check.reason, check.how_to_enable


def _image(panel: Panel, run: RunReader) -> str:
    return f"![{panel.title}]({panel.file})\n\n{' '.join([panel.reading, panel.note(run)]).strip()}"


def findings_text(findings: Sequence[Finding], *, mark_info: bool = True, fold: bool = False) -> list[str]:
    """Title, detail, advice and evidence of each; the severity `info` is written only with `mark_info`, and with `fold`
    the numbers are behind a line."""
    out = []
    for finding in findings:
        severity = f"**{capital(finding.severity)}.** " if mark_info or finding.severity != "info" else ""
        detail, advice = escape(finding.detail), f"**What to do.** {escape(finding.advice)}"
        more = [
            *(
                ["**This explains:**\n\n" + "\n".join(f"- {escape(line)}" for line in symptoms(finding))]
                if finding.taken_in
                else []
            ),
            *(f"**{heading}.** {escape(text)}" for heading, text in explanation(finding)),
            f"*Evidence: {escape(evidence_text(finding.evidence))}. Fingerprint {finding.fingerprint}.*",
        ]
        out.append(f"### {escape(finding.title)}")
        if fold:
            out += [f"{severity}{advice}", folded("numbers and evidence", [detail, *more])]
        else:
            out += [f"{severity}{detail}", advice, *more]
    return out


def _further(run: OnePass) -> str:
    """Code that opens this run and reads its richest probe."""
    if isinstance(run.backend, FolderBackend):
        path = run.backend.path
        if path.is_absolute() and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        opened = f"run = ls.open_run({json.dumps(str(path), ensure_ascii=False)})"
    else:
        opened = "run = w.run  # of the `w` that ls.watch gave: this run was kept in memory"
    richest = json.dumps(run.numbers.most_common(1)[0][0], ensure_ascii=False) if run.numbers.total() else ""
    return (
        f"```python\nimport learnscope as ls\n\n{opened}\n"
        f"run.frame({richest})  # one row a number: step, kind, scope, name, value, labels\n"
        "run.findings()  # what was found, as objects; run.findings(ls.Cuts(...)) moves a cut\n```"
    )


def folded(title: str, parts: Sequence[str]) -> str:
    """Parts behind a line that unfolds them, where Markdown is shown; all of it in the file."""
    return "\n\n".join([f"<details><summary>{escape(title)}</summary>", *parts, "</details>"])


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; cells are text, shown as it is."""
    rows = [head, ["---"] * len(head), *[[escape(cell) for cell in line] for line in lines]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def escape(text: str) -> str:
    """Text that Markdown shows as it is; underscores inside words and code in backticks stay as they are.

    >>> escape("a|b <c> h_0 __init__ `w.log(x=[1])`")
    'a\\\\|b \\\\<c\\\\> h_0 \\\\_\\\\_init\\\\_\\\\_ `w.log(x=[1])`'
    """
    special = r"(`[^`]*`)|[\\`*<>|\[\]]|(?<![^\W_])_|_(?![^\W_])"
    return re.sub(special, lambda match: match[1] or f"\\{match[0]}", text.replace("\n", " "))
