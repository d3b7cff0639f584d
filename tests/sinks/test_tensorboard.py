"""What the sink writes, read back by TensorBoard's own reader and held against the run's frame."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.sinks.selection import KINDS
from sinks.made import finding

Point = tuple[int, float, float]
LABELS = ("stage", "threshold", "rounding", "dtype", "unit")


def read(folder: Path) -> dict[str, list[Point]]:
    """Every scalar as (step, wall time, value)."""
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={reader.SCALARS: 0})
    events.Reload()
    return {tag: [(e.step, e.wall_time, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def record(step: int, *tables: ls.Table, attempt: int = 0, time: float = 0.0, error: str | None = None) -> ls.Record:
    return ls.Record(
        probe="P", step=step, phase="after_step", source="watch", time=time, cost=0.0, attempt=attempt, tables=tables,
        error=error,
    )  # fmt: skip


def one(name: str, value: float | None, kind: str = "model", scope: str = "model", **labels: Any) -> ls.Table:
    return ls.Table(kind, [scope], [ls.Column(name, [value], labels)])


def write(folder: Path, *records: ls.Record, **options: Any) -> dict[str, list[Point]]:
    sink = ls.TensorBoardSink(folder, **options)
    for each in records:
        sink.write(each)
    sink.close()
    return read(folder)


def expected(run: ls.Run, kinds: tuple[str, ...] = KINDS) -> dict[str, list[Point]]:
    """The same from the frame: one series for every name, scope and combination of labels."""
    found: dict[str, list[Point]] = {}
    frame = run.frame()
    named = [label for label in sorted(LABELS) if label in frame]
    for row in frame[frame["kind"].isin(kinds) & frame["value"].notna()].to_dict("records"):
        tag = f"{row['probe']}/{row['name']}" + ("" if row["kind"] == "model" else f"/{row['scope']}")
        labels = [f"{label}={row[label]}" for label in named if row[label] is not None and row[label] == row[label]]
        tag += f" ({', '.join(labels)})" if labels else ""
        found.setdefault(tag, []).append((row["step"], row["time"], float(np.float32(row["value"]))))
    return found


def train(w: ls.Watch, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 3)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        w.log(loss=loss, sometimes=float("nan") if step % 2 else 1.0)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
    return model, torch.optim.SGD(groups)


PROBES = [ls.GradientFlow(every=2), ls.ParameterChange(every=5), ls.Loss(), ls.LearningRate(every=3)]


@pytest.mark.parametrize("kinds", [KINDS, ("tensor",), ("model", "component")])
def test_a_real_run_reads_back_as_its_frame(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    model, optimizer = make()
    sink = ls.TensorBoardSink(tmp_path / "tb", kinds=kinds)
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=PROBES, sinks=[sink], strict=True) as w:
        train(w, model, optimizer, range(20))
    run = ls.open_run(tmp_path / "run")
    found, frame = read(tmp_path / "tb"), expected(run, kinds)
    assert set(found) == set(frame)
    for tag, points in frame.items():
        assert [(step, value) for step, _, value in found[tag]] == [(step, value) for step, _, value in points], tag
        assert [time for _, time, _ in found[tag]] == pytest.approx([time for _, time, _ in points], abs=1e-5), tag
    if kinds == KINDS:
        assert len(found["Loss/loss"]) == 20
        assert [step for step, _, _ in found["Loss/sometimes"]] == list(range(1, 20, 2)), "NaN is absent, not 0"
        assert [value for _, _, value in found["LearningRate/learning_rate/group_1"]] == [float(np.float32(0.2))] * 6
        assert {"GradientFlow/norm/0 (stage=stepped)", "GradientFlow/norm (stage=before_clip)"} <= set(found)


def test_steps_times_and_float32_are_kept(tmp_path: Path) -> None:
    values = [1 / 3, -0.0, 1e-40, 123456789.0, 7]
    records = [record(step, one("x", value), time=1.7e9 + step / 8) for step, value in enumerate(values, start=2**33)]
    found = write(tmp_path, *records)
    assert found == {
        "P/x": [(2**33 + i, 1.7e9 + (2**33 + i) / 8, float(np.float32(value))) for i, value in enumerate(values)]
    }


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    missing = [record(2, one("x", None)), record(3, one("x", float("nan"))), record(4, one("x", float("inf")))]
    found = write(tmp_path, record(1, one("x", 0.0)), *missing, record(5), record(6, error="ValueError: no"))
    assert found == {"P/x": [(1, 0.0, 0.0)]}


def test_tags_of_labels_do_not_collide(tmp_path: Path) -> None:
    thresholds = [1.5e-06, 2e-06, 1e-06, 0.1 + 0.2, 0.3]
    tables = [one("share", n, "layer", "h.0", threshold=t, stage="é") for n, t in enumerate(thresholds)]
    found = write(tmp_path, record(1, *tables, one("share", 9.0, "layer", "h.0", stage="é", threshold="1e-06 ")))
    assert list(found) == [
        f"P/share/h.0 (stage=é, threshold={t})"
        for t in ("1.5e-06", "2e-06", "1e-06", "0.30000000000000004", "0.3", "1e-06 ")
    ]
    assert [points[0][2] for points in found.values()] == [0.0, 1.0, 2.0, 3.0, 4.0, 9.0]


def test_the_order_of_labels_does_not_matter(tmp_path: Path) -> None:
    found = write(tmp_path, record(1, one("x", 1.0, a=1, b=2)), record(2, one("x", 2.0, b=2, a=1)))
    assert found == {"P/x (a=1, b=2)": [(1, 0.0, 1.0), (2, 0.0, 2.0)]}


def test_a_layer_and_a_group_of_the_same_name_are_two_curves(tmp_path: Path) -> None:
    tables = [one("norm", 1.0, "layer", "head"), one("norm", 2.0, "named", "head"), one("norm", 3.0)]
    found = write(tmp_path, record(1, *tables), record(2, *tables))
    assert {tag: [value for _, _, value in points] for tag, points in found.items()} == {
        "P/norm/head": [1.0, 1.0],
        "P/norm/head (kind=named)": [2.0, 2.0],
        "P/norm": [3.0, 3.0],
    }


def test_kinds_narrow_it_and_one_may_be_a_word(tmp_path: Path) -> None:
    tables = [
        one("x", 1.0),
        one("x", 2.0, "layer", "a"),
        one("x", 3.0, "tensor", "a.weight"),
        one("x", 4.0, "group", "g"),
    ]
    assert set(write(tmp_path / "a", record(1, *tables))) == {"P/x", "P/x/a", "P/x/g"}
    assert set(write(tmp_path / "b", record(1, *tables), kinds="tensor")) == {"P/x/a.weight"}
    assert write(tmp_path / "c", record(1, *tables), kinds=()) == {}


def test_a_file_of_the_same_second_is_read_first(tmp_path: Path) -> None:
    """TensorBoard reads by name: second, host, process, number; of two in one second the later may come first."""
    earlier = tmp_path / f"events.out.tfevents.{int(time.time()):010d}.~"
    earlier.touch()
    ls.TensorBoardSink(tmp_path).close()
    assert min(tmp_path.iterdir()) == earlier


@pytest.mark.filterwarnings("ignore:no state was saved")
@pytest.mark.parametrize("steps", [60, pytest.param(10, marks=pytest.mark.soak)])
def test_a_resumed_run_replaces_what_it_supersedes(tmp_path: Path, steps: int) -> None:
    model, optimizer = make()
    for resume in (False, True):
        sink = ls.TensorBoardSink(tmp_path / "tb")
        with ls.watch(
            model, optimizer, run=tmp_path / "run", probes=PROBES, sinks=[sink], strict=True, resume=resume,
            step=6 if resume else None,
        ) as w:  # fmt: skip
            train(w, model, optimizer, range(steps))
    run = ls.open_run(tmp_path / "run")
    assert len(run.frame("Loss", "loss", superseded=True)) == 2 * steps
    found, frame = read(tmp_path / "tb"), expected(run)
    assert [step for step, _, _ in found["Loss/loss"]] == list(range(1, steps + 7))
    assert {tag: [(s, v) for s, _, v in points] for tag, points in found.items()} == {
        tag: [(s, v) for s, _, v in points] for tag, points in frame.items()
    }


def test_many_layers_are_summed_up_unless_everything_is_asked_for(tmp_path: Path) -> None:
    layers = [f"h.{i}" for i in range(48)]
    column = ls.Column("norm", [float(i) for i in range(48)], {"stage": "stepped"})
    tables = [ls.Table("layer", layers, [column])]
    many = ls.Record(probe="GradientFlow", step=1, phase="", source="", time=0.0, cost=0.0, tables=tables)
    summed = {f"layers-{name}": value for name, value in {"min": 0.0, "median": 23.5, "max": 47.0}.items()}
    largest = {f"h.{i}": float(i) for i in (45, 46, 47)}
    assert {tag: points[0][2] for tag, points in write(tmp_path / "few", many).items()} == {
        f"GradientFlow/norm/{name} (stage=stepped)": value for name, value in (summed | largest).items()
    }
    assert len(write(tmp_path / "all", many, everything=True)) == 48


def test_alerts_are_texts(tmp_path: Path) -> None:
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    sink = ls.TensorBoardSink(tmp_path)
    sink.write(record(5, one("x", 1.0)))
    sink.alert(finding())
    sink.close()
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.PluginTagToContent("text").keys() == {"learnscope/alerts/nonfinite/text_summary"}
    (event,) = events.Tensors("learnscope/alerts/nonfinite/text_summary")
    assert event.step == 5
    assert event.tensor_proto.string_val[0].decode().startswith("**critical: The loss is NaN**")


def test_a_folder_or_a_writer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass one"):
        ls.TensorBoardSink()
    with pytest.raises(ValueError, match="pass one"):
        ls.TensorBoardSink(tmp_path, writer=object())


def test_closing_writes_what_is_waiting_and_closing_twice_does_nothing(tmp_path: Path) -> None:
    sink = ls.TensorBoardSink(str(tmp_path / "deep" / "tb"))
    for step in range(500):
        sink.write(record(step, one("x", float(step))))
    sink.close()
    sink.close()
    assert [step for step, _, _ in read(tmp_path / "deep" / "tb")["P/x"]] == list(range(500))
    with pytest.raises(ValueError, match="is closed: give every session its own sink"):
        sink.write(record(501, one("x", 1.0)))


def test_a_closed_sink_costs_a_warning_and_no_record(tmp_path: Path) -> None:
    model, optimizer = make()
    sink = ls.TensorBoardSink(tmp_path)
    sink.close()
    with pytest.warns(ls.ProbeWarning, match="TensorBoardSink failed"):
        with ls.watch(model, optimizer, probes=[ls.LearningRate(every=1)], sinks=[sink]) as w:
            train(w, model, optimizer, range(3))
    assert len(w.run.frame("LearningRate", "learning_rate")) == 6


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install learnscope\[tensorboard\]"):
        ls.TensorBoardSink(tmp_path / "tb")
    assert not (tmp_path / "tb").exists()


def test_it_needs_no_torch(tmp_path: Path) -> None:
    program = f"""
import sys
import learnscope as ls
sink = ls.TensorBoardSink({str(tmp_path)!r})
column = ls.Column("x", [0.5])
sink.write(ls.Record(probe="P", step=3, phase="", source="", time=1.0, cost=0.0,
                     tables=[ls.Table("model", ["model"], [column])]))
sink.close()
print("torch" in sys.modules, "tensorflow" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
    assert read(tmp_path) == {"P/x": [(3, 1.0, 0.5)]}
