"""The run folder: strict JSON, nothing lost, nothing overwritten, nothing of a newer kind misread."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import learnscope as ls
from learnscope.record import SCHEMA_VERSION, Column, Record, Table
from learnscope.store.backend import FolderBackend, MemoryBackend, RunError
from learnscope.store.files import write_json
from learnscope.store.reader import RunReader


def record(step: int = 1, attempt: int = 0, probe: str = "P", **extra: object) -> Record:
    columns = [
        Column("norm", [1.5, None], {"stage": "stepped"}, {1: "no gradient"}),
        Column("share", [0.25, 1.0], {"threshold": 1e-6}),
    ]
    table = Table("layer", ["a", "b"], columns)
    return Record(
        probe=probe, step=step, phase="after_step", source="watch", time=2.0, cost=0.001, attempt=attempt,
        tables=[table], **extra,  # type: ignore[arg-type]
    )  # fmt: skip


def folder(path: Path, attempts: list[dict[str, int]] | None = None) -> FolderBackend:
    backend = FolderBackend.create(path)
    backend.put_manifest({"schema": SCHEMA_VERSION, "attempts": attempts or [{"attempt": 0, "start_step": 0}]})
    return backend


def test_a_record_survives_the_round_trip() -> None:
    original = record(notes={"span": [0, 1]}, arrays="arrays/x.safetensors")
    again = Record.from_json(original.to_json())
    assert again == original
    assert [(r.scope, r.name, r.value, r.status) for r in again.rows()] == [
        ("a", "norm", 1.5, None),
        ("b", "norm", None, "no gradient"),
        ("a", "share", 0.25, None),
        ("b", "share", 1.0, None),
    ]


def test_what_is_not_finite_is_null_with_its_kind() -> None:
    column = Column("x", None).finished([1.0, math.nan, math.inf, -math.inf, None])
    assert column.values == [1.0, None, None, None, None]
    assert column.status == {1: "nan", 2: "inf", 3: "-inf", 4: "not measured"}


def test_json_is_strict() -> None:
    bad = Record(
        probe="P", step=0, phase="x", source="watch", time=0.0, cost=0.0,
        tables=[Table("model", ["model"], [Column("x", [math.nan])])],
    )  # fmt: skip
    with pytest.raises(ValueError):
        bad.to_json()


def test_a_table_of_148_tensors_stays_small() -> None:
    rng = np.random.default_rng(0)
    names = [f"transformer.h.{i // 12}.attn.c_attn.weight{i}" for i in range(148)]
    columns = [Column(f"statistic_{k}", rng.random(148).tolist()) for k in range(11)]
    wide = Record(
        probe="P", step=1, phase="x", source="watch", time=0.0, cost=0.0, tables=[Table("tensor", names, columns)]
    ).to_json()
    rows = [{"name": c.name, "scope": s, "value": v} for c in columns for s, v in zip(names, c.values, strict=True)]
    assert len(wide) < len(json.dumps(rows)) / 3


def test_frame_is_tidy(tmp_path: Path) -> None:
    backend = folder(tmp_path / "r")
    backend.append(record(step=1).to_json())
    backend.append(record(step=2, probe="Q").to_json())
    frame = RunReader(backend).frame()
    assert len(frame) == 8
    assert frame.value.dtype == np.float64
    missing = frame[frame.scope.eq("b") & frame.name.eq("norm")]
    assert missing.value.isna().all()
    assert list(missing.status) == ["no gradient"] * 2
    assert list(frame[frame.name == "share"].threshold) == [1e-6] * 4
    assert frame[frame.name == "norm"].threshold.isna().all()
    assert set(RunReader(backend).frame("Q").step) == {2}
    assert set(RunReader(backend).frame(name="share").name) == {"share"}
    assert RunReader(backend).frame(kind="model").empty


def test_an_empty_run_gives_an_empty_frame() -> None:
    frame = RunReader(MemoryBackend()).frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame.empty
    assert "value" in frame.columns


def test_a_torn_last_line_is_skipped_and_reported(tmp_path: Path) -> None:
    backend = folder(tmp_path / "r")
    for step in range(1, 4):
        backend.append(record(step=step).to_json())
    backend.close()
    path = tmp_path / "r" / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    run = ls.open_run(tmp_path / "r")
    assert [r.step for r in run.records()] == [1, 2]
    assert len(run.problems) == 1
    assert "line 3" in run.problems[0]
    # writing on: the torn line is ended, nothing that follows is lost, nothing before it is touched
    again = FolderBackend.existing(tmp_path / "r")
    again.append(record(step=9).to_json())
    assert [r.step for r in run.records()] == [1, 2, 9]
    assert len(run.problems) == 1


@pytest.mark.parametrize(
    "junk", [b"\x00\xff\xfe", b"[1, 2]", b'{"probe": "P"}', b"nonsense", b'{"probe":1,"tables":3}']
)
def test_a_damaged_line_costs_only_itself(tmp_path: Path, junk: bytes) -> None:
    backend = folder(tmp_path / "r")
    backend.append(record(step=1).to_json())
    with (tmp_path / "r" / "records.jsonl").open("ab") as file:
        file.write(junk + b"\n")
    backend.append(record(step=2).to_json())
    run = ls.open_run(tmp_path / "r")
    assert [r.step for r in run.records()] == [1, 2]
    assert len(run.problems) == 1


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    folder(tmp_path / "r").close()
    with pytest.raises(RunError, match=r"already holds a run.*resume=True"):
        FolderBackend.create(tmp_path / "r")


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"schema": SCHEMA_VERSION + 1})
    with pytest.raises(RunError, match=rf"schema {SCHEMA_VERSION + 1}.*reads up to {SCHEMA_VERSION}.*Upgrade"):
        ls.open_run(tmp_path)
    (tmp_path / "run.json").write_text("{not json")
    with pytest.raises(RunError, match="not readable JSON"):
        ls.open_run(tmp_path)
    with pytest.raises(RunError, match="not a run folder"):
        ls.open_run(tmp_path / "nowhere")


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    backend = folder(tmp_path / "r")
    backend.append(record().to_json())
    program = (
        "import sys; from pathlib import Path; from learnscope.store.backend import FolderBackend\n"
        "FolderBackend.existing(Path(sys.argv[1])).append('{}')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "r")], capture_output=True, text=True, check=False
    )
    assert "is being written by another process" in result.stderr
    assert (tmp_path / "r" / "records.jsonl").read_bytes().count(b"\n") == 1


def test_a_write_that_does_not_fit_leaves_the_earlier_lines_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = folder(tmp_path / "r")
    backend.append(record(step=1).to_json())
    real = os.write

    def full(file: int, data: bytes) -> int:
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="bytes fitted"):
        backend.append(record(step=2).to_json())
    monkeypatch.setattr(os, "write", real)
    backend.append(record(step=3).to_json())
    run = ls.open_run(tmp_path / "r")
    assert [r.step for r in run.records()] == [1, 3]
    assert run.problems == []


def test_superseded_records_are_kept_and_left_out(tmp_path: Path) -> None:
    backend = folder(tmp_path / "r", [{"attempt": 0, "start_step": 0}, {"attempt": 1, "start_step": 2}])
    for step in range(1, 5):
        backend.append(record(step=step, attempt=0).to_json())
    backend.append(record(step=3, attempt=1).to_json())
    reader = RunReader(backend)
    assert [(r.step, r.attempt) for r in reader.records()] == [(1, 0), (2, 0), (3, 1)]
    assert len(list(reader.records(superseded=True))) == 5
    assert reader.last_step == 3


def test_arrays_come_back_and_cannot_point_outside(tmp_path: Path) -> None:
    backend = folder(tmp_path / "r")
    value = np.arange(6, dtype=np.int64).reshape(2, 3).T  # not contiguous
    backend.put_arrays("arrays/a.safetensors", {"logits": value})
    backend.append(record(step=4, arrays="arrays/a.safetensors").to_json())
    backend.append(record(step=5, probe="Evil", arrays="../../secret.safetensors").to_json())
    run = ls.open_run(tmp_path / "r")
    assert np.array_equal(run.arrays("P")["logits"], value)
    assert run.array_steps("P") == [4]
    with pytest.raises(KeyError, match="P recorded no arrays at step 9"):
        run.arrays("P", 9)
    with pytest.raises(RunError, match="outside the run folder"):
        run.arrays("Evil")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"new": math.nan})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("compacted", [False, True])
def test_the_columns_do_not_depend_on_what_has_fired(tmp_path: Path, compacted: bool) -> None:
    """A label that a probe of the run declares is a column, null where nothing was recorded with it."""
    frames = {}
    for name, steps in (("short", 1), ("long", 10)):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ls.watch(model, optimizer, run=tmp_path / name, strict=True) as w:
            for _ in range(steps):
                loss = model(torch.ones(1, 2)).sum()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
        if compacted:
            ls.open_run(tmp_path / name).compact()
        frames[name] = ls.open_run(tmp_path / name).frame()
    assert "GradientFlow" not in set(frames["short"].probe)
    assert "GradientFlow" in set(frames["long"].probe)
    assert list(frames["short"].columns) == list(frames["long"].columns)
    assert {"stage", "origin", "unit", "threshold"} <= set(frames["short"].columns)
    assert frames["short"].stage.isna().all()
    own = ls.open_run(tmp_path / "short").frame("GradientFlow")
    assert own.empty
    assert {"stage", "origin"} <= set(own.columns)
    assert "threshold" not in own.columns, "another probe's"


def test_a_run_that_does_not_say_which_labels_it_has(tmp_path: Path) -> None:
    backend = folder(tmp_path / "r")
    backend.append(record(step=1).to_json())
    assert list(RunReader(backend).frame().columns[-2:]) == ["stage", "threshold"], "those that were recorded"
