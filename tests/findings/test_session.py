"""Failures of probes, torn lines, skipped firings; and the findings of a run as a whole."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.findings.session import session
from learnscope.record import SEVERITIES


def test_a_sound_session() -> None:
    run = MadeRun()
    run.loss(1, 1.0)
    assert session(run.reader, Cuts()) == []
    assert session(MadeRun().reader, Cuts()) == []


def test_probes_that_failed() -> None:
    run = MadeRun()
    for step in range(1, 6):
        if step in (2, 4):
            run.write("Mine", step, error=f"ValueError: shape [3] at {step}\nsecond line")
        else:
            run.model("Mine", step, x=1.0)
    [finding] = session(run.reader, Cuts())
    assert finding.title == "Mine failed in 2 of 5 firings, first at step 2"
    assert "ValueError: shape [3] at 2." in finding.detail
    assert "second line" not in finding.detail
    assert "Steps 2 to 4" in finding.detail
    assert "rests on 3 firings" in finding.advice


def test_a_probe_that_never_worked() -> None:
    run = MadeRun()
    run.write("Mine", 1, error="KeyError: 'x'")
    run.write("Mine", 2, error="RuntimeError: y")
    [finding] = session(run.reader, Cuts())
    assert "2 of 2" in finding.title
    assert "KeyError, RuntimeError" in finding.detail
    assert "Nothing that Mine would have shown" in finding.advice


def test_torn_lines() -> None:
    run = MadeRun()
    run.loss(1, 1.0)
    run.backend.append('{"probe":"Loss","st')
    [finding] = session(run.reader, Cuts())
    assert finding.title == "1 line of the record could not be read"
    assert "line 2 of records.jsonl" in finding.detail
    assert "nothing to do" in finding.advice
    run.backend.append("{")
    [finding] = session(run.reader, Cuts())
    assert "2 of them are more" in finding.advice


def test_firings_that_a_budget_left_out() -> None:
    run = MadeRun()
    run.manifest["attempts"][0]["cost"] = {"budget": 0.02, "seconds": 1.0, "wall_seconds": 100.0}
    run.write("GradientFlow", 10, cost=0.004)
    run.write("GradientFlow", 40, cost=0.006, notes={"skipped_by_budget": 2})
    run.write("GradientFlow", 60, cost=0.005, notes={"skipped_by_budget": 1})
    [finding] = session(run.reader, Cuts())
    assert finding.severity == "info"
    assert finding.title == "GradientFlow was skipped in 3 of 6 due firings"
    assert "2 % of the wall time" in finding.detail
    assert "cost 5 ms each" in finding.detail


def test_findings_come_gravest_first_and_are_json() -> None:
    run = MadeRun(frozen=["base"])
    run.write("Mine", 1, error="ValueError: x")
    run.loss(2, math.nan)
    found = find(run.reader)
    assert [f.severity for f in found] == ["critical", "warning", "info"]
    assert all(f.severity in SEVERITIES and f.title and f.detail and f.advice for f in found)
    assert [f.to_json()["kind"] for f in found] == ["nonfinite", "probe_failed", "frozen"]


def test_an_empty_run_has_no_findings() -> None:
    assert find(MadeRun().reader) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"measurements": 0}, ValueError),
        ({"measurements": 2.5}, TypeError),
        ({"off_median": 1.0}, ValueError),
        ({"small_update": math.nan}, ValueError),
        ({"large_update": 1.5}, ValueError),
        ({"overfitting_rise": 0.5}, ValueError),
        ({"overfitting_rise": True}, TypeError),
        ({"overfitting_rise": "much"}, TypeError),
    ],
)
def test_cuts_that_make_no_sense_are_refused_by_name(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Cuts(**options)  # type: ignore[arg-type]


def test_findings_and_report_import_no_torch() -> None:
    code = (
        "import sys, learnscope.findings, learnscope.report.markdown, learnscope.report.terminal;"
        "assert 'torch' not in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
