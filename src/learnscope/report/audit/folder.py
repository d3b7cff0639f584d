"""The report of an audit: results as JSON, a summary, insights, and plots, each written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learnscope.findings import find
from learnscope.findings.bits.bit_widths import audit_bits
from learnscope.findings.cost.deployment import audit_deployment
from learnscope.findings.outputs.performance import audit_performance
from learnscope.findings.registry import findings_of
from learnscope.findings.robustness.robustness import audit_robustness
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import OnePass, one_pass
from learnscope.reading.words import capital
from learnscope.record import Finding
from learnscope.report.audit.panels import FIGURES, AuditFigure
from learnscope.report.audit.results import SECTIONS, results
from learnscope.report.audit.summary import summary_text
from learnscope.report.layout import save
from learnscope.report.markdown import escape, evidence_text
from learnscope.store.files import write_json, write_text
from learnscope.store.reader import RunReader

INSIGHTS = {
    "Performance": (audit_performance, SECTIONS["performance"]),
    "Quantisation": (audit_bits, SECTIONS["bit_widths"]),
    "Robustness": (audit_robustness, SECTIONS["robustness"]),
    "Deployment scenarios": (audit_deployment, ()),
}
"""The chapters of the insights: what finds them, and the parts that it finds them in."""


def write_audit(
    reader: RunReader, folder: str | Path, *, cuts: Cuts | None = None, name: str = "model",
    about: Mapping[str, Any] | None = None,
) -> list[Path]:  # fmt: skip
    """Write the report of an audit into `folder`; the paths of its files.

    `about` are facts that no probe measures: the model's configuration, the data, the options. A part that did not run
    is named with its reason, and a plot of an earlier report that can no longer be made is removed.
    """
    run, cuts, about, target = one_pass(reader), cuts or Cuts(), about or {}, Path(folder)
    audit, found = read_audit(run), find(run, cuts)
    target.mkdir(parents=True, exist_ok=True)
    drawn, absent = _plots(run, audit, cuts, target / "plots")
    paths = [target / file for file in ("analysis_results.json", "summary_report.md", "insights.md")]
    write_json(paths[0], results(run, found, cuts=cuts, name=name, about=about))
    text = summary_text(audit, run.manifest, name=name, about=about, drawn=drawn, absent=absent)
    write_text(paths[1], text)
    write_text(paths[2], insights_text(run, audit, found, cuts, name))
    return paths + [target / "plots" / one.panel.file for one in drawn]


def _plots(run: OnePass, audit: Audit, cuts: Cuts, folder: Path) -> tuple[list[AuditFigure], dict[str, str]]:
    """Draw what can be drawn; what cannot, and why."""
    drawn: list[AuditFigure] = []
    absent: dict[str, str] = {}
    for one in FIGURES:
        figure = one.draw(run, cuts)
        if figure is None:
            (folder / one.panel.file).unlink(missing_ok=True)  # of an earlier report, no longer true
            why = dict.fromkeys(audit.missing[part] for part in one.parts if part in audit.missing)
            absent[one.panel.file] = "; ".join(why) or "none of the numbers that it shows could be measured"
        else:
            save(figure, folder / one.panel.file)
            drawn.append(one)
    return drawn, absent


def insights_text(run: RunReader, audit: Audit, found: Sequence[Finding], cuts: Cuts, name: str) -> str:
    """Every sentence is of a finding, and stands beside what it rests on."""
    parts = [f"# Insights into {escape(name)}"]
    placed: list[Finding] = []
    for title, (analysis, needed) in INSIGHTS.items():
        here = findings_of(analysis, run, cuts)
        placed += here
        parts.append(f"## {title}")
        for finding in here:
            parts += _finding(finding)
        missing = [
            f"{capital(part)} was not looked at: {audit.missing[part]}." for part in needed if part in audit.missing
        ]
        if missing:
            parts.append(escape(" ".join(missing)))
        elif not here:
            parts.append("No number was recorded that anything could be said of.")
    others = [finding for finding in found if finding not in placed]
    if others:
        parts.append("## Also found")
        for finding in others:
            parts += _finding(finding)
    return "\n\n".join(parts) + "\n"


def _finding(finding: Finding) -> list[str]:
    mark = "" if finding.severity == "info" else f"**{capital(finding.severity)}.** "
    return [
        f"### {escape(finding.title)}", f"{mark}{escape(finding.detail)}", f"**What to do.** {escape(finding.advice)}",
        f"*Evidence: {escape(evidence_text(finding.evidence))}.*",
    ]  # fmt: skip
