"""The report of an audit: results as JSON, a summary, insights, and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from learnscope.findings import find, findings_of
from learnscope.findings.bits.bit_widths import audit_bits
from learnscope.findings.cost.deployment import audit_deployment
from learnscope.findings.cost.devices import audit_device
from learnscope.findings.cost.exported import audit_exported
from learnscope.findings.outputs.finished.performance import audit_performance
from learnscope.findings.robustness.robustness import audit_robustness
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_numbers import Part
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import OnePass, one_pass
from learnscope.reading.words import capital
from learnscope.record import Finding, plain_json
from learnscope.report.audit.panels import FIGURES, AuditFigure
from learnscope.report.audit.summary import summary_text
from learnscope.report.audit.verdict import verdict
from learnscope.report.layout import save
from learnscope.report.markdown import escape, findings_text
from learnscope.store.files import write_json, write_text
from learnscope.store.reader import RunReader

SCHEMA = 1
SECTIONS = {
    "performance": ("quality", "tasks", "speed", "memory", "layers"),
    "bit_widths": ("sensitivity", "configurations", "optimum", "exported"),
    "robustness": ("prompts", "perturbations", "noise", "attacks", "transfer"),
}
"""The sections of the results and the parts of an audit that each holds."""
INSIGHTS = {
    "Performance": (audit_performance, SECTIONS["performance"]),
    "Quantisation": (audit_bits, ("sensitivity", "configurations", "optimum")),
    "Speed of packed weights": (audit_exported, ("exported",)),
    "Deployment scenarios": (audit_deployment, ()),
    "The device described": (audit_device, ()),
    "Robustness": (audit_robustness, SECTIONS["robustness"]),
}
"""The chapters of the insights: their analysis, and the parts that it reads."""


def write_audit(
    reader: RunReader, folder: str | Path, *, cuts: Cuts | None = None, name: str = "model",
    about: Mapping[str, Any] | None = None,
) -> list[Path]:  # fmt: skip
    """Write the report of an audit into `folder`; returns the paths of its files.

    `about` are facts that no probe measures: the model's configuration, the data, the options. A part that did not run
    is named with its reason, and a plot of an earlier report that can no longer be drawn is removed.
    """
    run, cuts, about, target = one_pass(reader), cuts or Cuts(), about or {}, Path(folder)
    audit, findings = read_audit(run), find(run, cuts)
    target.mkdir(parents=True, exist_ok=True)
    drawn, absent = _plots(run, audit, cuts, target / "plots")
    paths = [target / file for file in ("analysis_results.json", "summary_report.md", "insights.md")]
    write_json(paths[0], _results(run, audit, findings, cuts, name, about))
    said = verdict(run, cuts)
    summary = summary_text(audit, run.manifest, name=name, about=about, drawn=drawn, absent=absent, verdict=said)
    write_text(paths[1], summary)
    write_text(paths[2], _insights(run, audit, findings, cuts, name))
    return paths + [target / "plots" / figure.panel.file for figure in drawn]


def _plots(run: OnePass, audit: Audit, cuts: Cuts, folder: Path) -> tuple[list[AuditFigure], dict[str, str]]:
    """Save the figures that have data; returns them, and why the others are absent, by file."""
    drawn: list[AuditFigure] = []
    absent: dict[str, str] = {}
    for figure in FIGURES:
        path = folder / figure.panel.file
        if (image := figure.draw(run, cuts)) is not None:
            save(image, path)
            drawn.append(figure)
            continue
        path.unlink(missing_ok=True)  # of an earlier report, no longer true
        reasons = dict.fromkeys(audit.missing[part] for part in figure.parts if part in audit.missing)
        absent[path.name] = "; ".join(reasons) or "none of the numbers that it shows could be measured"
    return drawn, absent


def _results(
    run: RunReader, audit: Audit, findings: Sequence[Finding], cuts: Cuts, name: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Every number of every part, the findings, and why parts are missing; a missing number is null with its reason."""
    more = dict(about)
    model = {**(run.manifest.get("model") or {}), **more.pop("model", {})}
    body: dict[str, Any] = {"schema": SCHEMA, "name": name, "model": model, "about": more}
    for section, parts in SECTIONS.items():
        body[section] = {part: _part(getattr(audit, part)) for part in parts if part not in audit.missing} or None
    if audit.autoattack is not None:
        body["robustness"] = {**(body["robustness"] or {}), "autoattack": _part(audit.autoattack)}
    body |= {
        "findings": [finding.to_json() for finding in findings],
        "thresholds": {key: value for key, value in asdict(cuts).items() if key.startswith("audit_")},
        "not_run": dict(audit.missing),
        "environment": run.manifest.get("environment") or None,
    }
    return dict(plain_json(body))


def _part(part: Part) -> dict[str, Any]:
    rows = [
        {"kind": entry.kind, "scope": entry.scope, "labels": dict(entry.labels), "values": entry.values}
        | ({"reasons": entry.reasons} if entry.reasons else {})
        for entry in part.entries
    ]
    return {"probe": part.probe, "notes": dict(part.notes), "rows": rows}


def _insights(run: RunReader, audit: Audit, findings: Sequence[Finding], cuts: Cuts, name: str) -> str:
    text = [f"# Insights into {escape(name)}"]
    placed: list[Finding] = []
    for title, (analysis, parts) in INSIGHTS.items():
        own = findings_of(analysis, run, cuts)
        if analysis is audit_device and not own:
            continue
        placed += own
        text += [f"## {title}", *findings_text(own, mark_info=False, fold=True)]
        missing = [f"{capital(p)} was not looked at: {audit.missing[p]}." for p in parts if p in audit.missing]
        if missing:
            text.append(escape(" ".join(missing)))
        elif not own:
            text.append("No number was recorded that anything could be said of.")
    if others := [finding for finding in findings if finding not in placed]:
        text += ["## Also found", *findings_text(others, mark_info=False, fold=True)]
    return "\n\n".join(text) + "\n"
