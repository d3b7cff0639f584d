"""The folder is a run folder too: the same numbers in its frame, and findings and a report from them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import learnscope as ls
from telemetry.loops import Net, batches, lines, telemetry_in, train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(2)
    model = Net()
    optimizer = torch.optim.SGD(
        [{"params": model.backbone.parameters(), "lr": 0.1}, {"params": model.head.parameters(), "lr": 1.0}]
    )
    with telemetry_in(tmp_path / "t", every=2) as telemetry:
        telemetry.set_holdout_data(batches(3))
        for epoch in range(2):
            train(model, optimizer, batches(7), telemetry, epoch=epoch, loss=0.25)
    return tmp_path / "t"


def test_the_frame_has_the_numbers_of_the_lines(folder: Path) -> None:
    run = ls.open_run(folder)
    assert run.problems == []
    frame = run.frame()
    compared = 0
    places = {"overall": ("model", "model"), "backbone": ("named", "backbone"), "head": ("named", "head")}
    places |= {"group_0": ("group", "group_0"), "group_1": ("group", "group_1")}
    names = {"gradient_norm": "norm", "weight_delta": "l2", "learning_rates": "learning_rate"}
    for line in lines(folder / "telemetry.jsonl"):
        here = frame[(frame.step == line["global_step"]) & (frame.epoch == line["epoch"])]
        for section, name in names.items():
            for key, value in line[section].items():
                kind, scope = places[key]
                (found,) = here[(here.name == name) & (here.kind == kind) & (here.scope == scope)].value
                assert found == value or (value is None and math.isnan(found)), (section, key)
                compared += 1
        for key in ("accuracy", "loss"):
            assert here[here.name == f"holdout_{key}"].value.tolist() == [line["holdout_logits"][key]]
        assert here[here.name == "loss"].value.tolist() == [0.25]
        share = here[(here.name == "share") & (here.scope == "1")].value.tolist()
        assert [100 * each for each in share] == [line["batch_stats"]["class_1_pct"]]
    assert compared == 6 * (5 + 5 + 4)


def test_findings_and_a_report(folder: Path) -> None:
    run = ls.open_run(folder)
    for finding in run.findings():
        assert finding.title
        assert finding.evidence.n > 0
    report = run.report()
    text = report.read_text()
    assert "gradient" in text.lower()
    assert (folder / "findings.json").exists()
    assert list(report.parent.glob("*.svg")) or list(report.parent.glob("*.png"))


def test_a_model_that_does_not_learn_is_a_finding(tmp_path: Path) -> None:
    """The purpose of it all: NaN in the gradients is said, not only recorded."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with telemetry_in(tmp_path / "t") as telemetry:
        for number, (x, _) in enumerate(batches(8), 1):
            optimizer.zero_grad()
            (model(x).sum() * (torch.nan if number > 5 else 1.0)).backward()
            telemetry.on_batch_end(model, optimizer, number, 0)
    found = telemetry.run.findings()
    bad = [finding for finding in found if "nonfinite" in finding.kind]
    assert bad
    assert bad[0].evidence.first_step == 6
    assert bad[0].severity == "critical"
