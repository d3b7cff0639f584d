"""The report of an audit: results, summary, insights and plots; and of several models side by side."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from learnscope.findings import Cuts, find
from learnscope.report.audit.folder import INSIGHTS, write_audit
from learnscope.report.audit.panels import FIGURES
from learnscope.report.audit.verdict import verdict
from learnscope.report.markdown import escape, evidence_text
from learnscope.run import Run
from report.audit.audit_runs import AuditRun, made

PLOTS = {one.panel.file for one in FIGURES}


def refuse(token: str) -> Any:
    raise AssertionError(f"{token} is no JSON")


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "analysis_results.json").read_text(), parse_constant=refuse)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("audit")
    about = {"model": {"n_layer": 12}, "data": {"split": "validation[:100]", "loss": math.inf}, "path": Path("a_b.pt")}
    paths = write_audit(made().reader, target, name="gpt2 *tuned*", about=about, cuts=Cuts(audit_memory_bytes=7e8))
    assert all(path.is_file() for path in paths)
    assert {path.name for path in paths} == PLOTS | {"analysis_results.json", "summary_report.md", "insights.md"}
    return target


def test_the_results_are_complete_and_strict(folder: Path) -> None:
    body = read(folder)
    assert body["schema"] == 1
    assert {"model", "performance", "bit_widths", "robustness", "findings", "not_run"} <= body.keys()
    assert body["not_run"] == {}
    assert body["model"]["n_layer"] == 12
    assert body["model"]["class"] == "GPT2LMHeadModel"
    assert body["about"] == {"data": {"split": "validation[:100]", "loss": None}, "path": "a_b.pt"}
    assert body["thresholds"]["audit_memory_bytes"] == 7e8
    main = next(row for row in body["performance"]["speed"]["rows"] if row["labels"]["main"])
    assert main["values"]["latency_p99"] is None
    assert main["reasons"] == {"latency_p99": "n = 100: too few for this percentile"}
    records = {record.probe: record for record in made().reader.records()}
    for part in (part for name in ("performance", "bit_widths", "robustness") for part in body[name].values()):
        wanted = {(r.kind, r.scope, tuple(sorted(r.labels.items())), r.name): r.value
                  for r in records[part["probe"]].rows()}  # fmt: skip
        kept = {(row["kind"], row["scope"], tuple(sorted(row["labels"].items())), name): value
                for row in part["rows"] for name, value in row["values"].items()}  # fmt: skip
        assert kept == wanted
        assert part["notes"] == records[part["probe"]].notes


def test_the_summary_has_tables_and_figures(folder: Path) -> None:
    text = (folder / "summary_report.md").read_text()
    assert text.startswith("# Audit of gpt2 \\*tuned\\*\n\n14 of 14 parts ran.")
    for line in (
        "| n layer | 12 |", "| perplexity | 24.5 | 23.3 to 25.7 | 256 |",
        "| tokens/s (forward, batch 4, length 128) | 5,570 |  | 100 |",
        "| latency, P99 (forward, batch 4, length 128) | n/a | n = 100: too few for this percentile | 100 |",
        "Recommended: **optimal**", "| change of the loss | +0.0121 | +0.0109 to +0.0133 | 48 |",
        "| robustness gap | 0.23 | 0.19 to 0.27 | 32 |",
        "| flag: more damage with more steps | n/a | one number of steps was tried | 32 |",
    ):  # fmt: skip
        assert line in text, line
    order = [
        text.index(f"## {title}")
        for title in (
            "Model configuration",
            "Key performance metrics",
            "Optimal bit-width configuration",
            "Robustness summary",
        )
    ]
    assert order == sorted(order)
    assert all(f"(plots/{file})" in text for file in PLOTS)
    assert "Not run" not in text


def test_every_insight_is_a_finding_with_its_evidence(folder: Path) -> None:
    text = (folder / "insights.md").read_text()
    found = find(made().reader, Cuts(audit_memory_bytes=7e8))
    known = {"# Insights into gpt2 \\*tuned\\*"}
    known |= {f"## {title}" for title in INSIGHTS if title != "The device described"}
    known |= {"<details><summary>numbers and evidence</summary>", "</details>"}
    for one in found:
        mark = "" if one.severity == "info" else "**Warning.** "
        known |= {f"### {escape(one.title)}", escape(one.detail), f"{mark}**What to do.** {escape(one.advice)}",
                  f"*Evidence: {escape(evidence_text(one.evidence))}. Fingerprint {one.fingerprint}.*"}  # fmt: skip
    assert set(text.strip().split("\n\n")) == known
    assert "### Suits edge devices: 526 MB ≤ 700 MB" in text  # with the threshold that was given


def test_a_partial_audit_says_what_is_missing_and_removes_what_is_stale(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "results"
    plots = target / "plots"
    plots.mkdir(parents=True)
    (plots / "noise_robustness.png").write_bytes(b"of an earlier report")
    (plots / "mine.png").write_bytes(b"the user's")
    run = AuditRun(2)
    run.performance()
    run.write("InferenceSpeed", 0, error="RuntimeError: out of | memory")
    run.sensitivity()
    paths = write_audit(run.reader, target)
    assert {path.name for path in plots.iterdir()} == {
        "layer_sensitivity.png", "analysis_summary_dashboard.png", "mine.png"
    }  # fmt: skip
    assert {path.name for path in paths if path.suffix == ".png"} == {
        "layer_sensitivity.png", "analysis_summary_dashboard.png"
    }  # fmt: skip
    body = read(target)
    assert body["robustness"] is None
    assert body["not_run"]["noise"] == "NoiseRobustness was not run"
    assert body["not_run"]["speed"] == "InferenceSpeed failed: RuntimeError: out of | memory"
    summary, insights = ((target / file).read_text() for file in ("summary_report.md", "insights.md"))
    assert "2 of 14 parts ran" in summary
    assert "| speed | InferenceSpeed failed: RuntimeError: out of \\| memory |" in summary
    assert "| `noise_robustness.png` | NoiseRobustness was not run |" in summary
    assert "None is recommended: BitOptimum was not run." in summary
    assert "Attacks was not looked at" not in insights.replace("Attacks was not looked at: Attacks was not run.", "")
    assert "## Also found" in insights  # that a probe failed is a finding as well
    assert "InferenceSpeed failed in 1 of 1 firing" in insights
    assert not list(target.glob("*.tmp"))


def test_numbers_that_are_not_finite_stay_out_of_the_json(tmp_path: Path) -> None:
    run = AuditRun(2)
    run.performance(math.nan)
    write_audit(run.reader, tmp_path)
    row = read(tmp_path)["performance"]["quality"]["rows"][0]
    assert row["values"]["loss"] is None
    assert row["reasons"]["loss"] == "nan"
    assert "| loss | n/a | nan | 256 |" in (tmp_path / "summary_report.md").read_text()


def test_an_audit_in_the_report_of_any_run(tmp_path: Path) -> None:
    run = AuditRun(2)
    run.memory()
    run.sensitivity()
    Run(run.backend).report(tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "performance_memory.png", "layer_sensitivity.png", "analysis_summary_dashboard.png"
    }  # fmt: skip


def test_the_page_is_short_and_the_rest_is_behind_it(folder: Path) -> None:
    """A whole audit: what is seen before anything is unfolded, and what the console says."""
    text = (folder / "summary_report.md").read_text()
    assert text.count("<details>") == text.count("</details>") > 3
    seen = before_unfolding(text)
    assert "| perplexity | 24.5 |" in text
    assert "| perplexity | 24.5 |" not in seen
    assert words(seen) < 700 < words(text)
    insights = (folder / "insights.md").read_text()
    assert words(seen) + words(before_unfolding(insights)) < 1500 < words(text) + words(insights)
    lines = verdict(made().reader, Cuts(audit_memory_bytes=7e8))
    assert len(lines) <= 14
    assert words(" ".join(f"{label} {said}" for label, said in lines)) < 300


def before_unfolding(text: str) -> str:
    """What is seen before anything is unfolded."""
    return re.sub(r"<details><summary>(.*?)</summary>.*?</details>", r"\1", text, flags=re.DOTALL)


def words(text: str) -> int:
    """Of a table what is in its cells, without its lines."""
    return len(text.replace("|", " ").replace("-", "").split())
