"""The text and the file, read back by Prometheus' own parser."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import learnscope as ls
from sinks.made import finding, one, record, table, train

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Samples:
    families = list(text_string_to_metric_families(text))
    assert {family.type for family in families} <= {"gauge"}
    assert all(family.documentation for family in families)
    assert len({family.name for family in families}) == len(families), "a name stands in one place"
    samples = [sample for family in families for sample in family.samples]
    assert all(sample.timestamp is None for sample in samples), "the textfile collector refuses times"
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def latest(run: ls.Run, probe: str, name: str, kind: str = "model", **labels: Any) -> dict[str, float]:
    """The last recorded number of each scope, from the frame."""
    frame = run.frame(probe, name, kind)
    for label, value in labels.items():
        frame = frame[frame[label] == value]
    frame = frame[frame["step"] == frame["step"].max()]
    return dict(zip(frame["scope"], frame["value"], strict=True))


def test_a_real_run_reads_back_as_its_last_records(tmp_path: Path) -> None:
    path = tmp_path / "collector" / "train.prom"
    train(9, layers=6, sinks=[ls.PrometheusSink(path)], run=tmp_path / "a", strict=True)
    run, found = ls.open_run(tmp_path / "a"), read(path.read_text())
    assert found == read(ls.prometheus_text(run.records(), run="a"))
    assert found[key("learnscope_step", run="a")] == 9
    assert found[key("learnscope_outputs_loss", run="a")] == latest(run, "Loss", "loss")["model"]
    norms = latest(run, "GradientFlow", "norm", "layer", stage="stepped")
    assert len(norms) == 7
    of_layers = {
        dict(labels)["layer"]: value
        for (name, labels), value in found.items()
        if name == "learnscope_gradients_norm_by_layer" and ("stage", "stepped") in labels
    }
    assert len(of_layers) >= 3
    assert of_layers == {name: norms[name] for name in of_layers}
    summed = key("learnscope_gradients_norm_layers", run="a", stage="stepped", summary="max")
    assert found[summed] == max(norms.values())
    assert list(path.parent.iterdir()) == [path], "nothing else is left there"


def test_only_the_latest_counts_and_what_was_not_measured_is_forgotten() -> None:
    steps = [{"x": 1.0, "y": 2.0}, {"x": None, "y": float("nan")}, {"z": float("-inf")}]
    records = [record(step, *(one(name, value) for name, value in each.items())) for step, each in enumerate(steps)]
    found = read(ls.prometheus_text(records))
    assert key("learnscope_P_x") not in found
    assert math.isnan(found[key("learnscope_P_y")])
    assert found[key("learnscope_P_z")] == -math.inf
    assert found[key("learnscope_step")] == 2


def test_odd_names_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    found = read(
        ls.prometheus_text([record(1, table("layer", [odd, "é"], "my name", [1.0, 2.0], **{"my-label": 1e-6}))])
    )
    values = {
        dict(labels).get("layer"): value
        for (name, labels), value in found.items()
        if name == "learnscope_P_my_name_by_layer"
    }
    assert values["é"] == 2.0
    assert sorted(values.values()) == [1.0, 2.0]
    assert {dict(labels).get("my_label") for (name, labels) in found if "my_name" in name} == {"1e-06"}


def test_it_is_written_now_and_then_at_the_end_and_with_an_alert(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "a.prom"
    sink = ls.PrometheusSink(path, run="r", clock=lambda: now[0])
    written = []
    for step, at in enumerate([0.0, 1.0, 4.9, 5.0, 6.0], start=1):
        now[0] = at
        sink.write(record(step, one("x", float(step))))
        written.append(read(path.read_text())[key("learnscope_step", run="r")])
    assert written == [1, 1, 1, 4, 4]
    sink.alert(finding())
    assert read(path.read_text())[key("learnscope_alert", run="r", kind="nonfinite", severity="critical")] == 5
    sink.write(record(7, one("x", 1.0)))
    sink.close()
    assert read(path.read_text())[key("learnscope_step", run="r")] == 7
    with pytest.raises(ValueError, match=r"must end in \.prom"):
        ls.PrometheusSink(tmp_path / "a.txt")
