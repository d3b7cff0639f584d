"""Audits of several models side by side."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.run import Run
from learnscope.store.backend import RunError
from report.audit.audit_runs import AuditRun, made


def test_models_side_by_side(tmp_path: Path) -> None:
    first, second, third = made(2), made(2, without=("attacks",)), AuditRun(1)
    second.performance(3.9)
    second.speed(40, 0.3)
    third.performance(math.nan, examples=9)
    runs = [Run(one.backend) for one in (first, second, third)]
    compared = ls.compare(runs, names=["a", "b | c", "nan"])
    path = compared.save_audits(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"comparison.md", "comparison.png"}
    text = path.read_text()
    assert "| metric | a | b \\| c | nan |" in text
    assert "| loss | 3.2 (3.15 to 3.25) ★ | 3.9 (3.85 to 3.95) | n/a (nan) |" in text
    assert "| accuracy | 0.41 (0.4 to 0.42) | 0.41 (0.4 to 0.42) | 0.41 (0.4 to 0.42) |" in text
    assert "| throughput | 5,570 | 1,670 | n/a |" in text  # without intervals none is called best
    assert "| b \\| c | attacks | Attacks was not run |" in text
    assert "Quality was measured on different data: a on 256 examples, b | c on 256 examples and nan on 9" in (
        text.replace("\\", "")
    )
    page = compared.save(tmp_path / "whole").read_text()
    assert "| loss | 3.2 (3.15 to 3.25) ★ | 3.9 (3.85 to 3.95) | n/a (nan) |" in page
    assert "(audits.png)" in page
    loss = compared.to_json()["audits"][0]
    assert (loss["metric"], loss["best"], loss["numbers"]["nan"]["value"]) == ("loss", "a", None)


def test_runs_without_an_audit_have_none_to_show(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        made_run = MadeRun()
        made_run.loss(1, 1.0)
        runs.append(Run(made_run.backend))
    compared = ls.compare(runs, names=["a", "b"])
    assert compared.to_json()["audits"] == []
    assert "side by side" not in compared.save(tmp_path).read_text()
    with pytest.raises(RunError, match="none of these runs holds an audit"):
        compared.save_audits(tmp_path)
