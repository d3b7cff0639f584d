"""wandb's own file: cut off anywhere, damaged, resumed, with other step axes, without the package."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2 as pb

import learnscope as ls
from importing.trainings import Training
from learnscope.importing.wandb_file import wandb_records

BLOCK = 32768


def log(path: Path, *records: Any) -> Path:
    """A file as wandb writes it, made of these records by the description of LevelDB's log."""
    data = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        body, first = record.SerializeToString(), True
        while True:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += bytes(left)
                left = BLOCK
            piece, body = body[: left - 7], body[left - 7 :]
            kind = (1 if not body else 2) if first else (4 if not body else 3)
            data += struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece
            first = False
            if not body:
                break
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def history(step: int, **values: str) -> Any:
    record = pb.Record()
    record.history.step.num = step
    for name, text in values.items():
        item = record.history.item.add()
        item.nested_key.extend(name.split("__"))
        item.value_json = text
    return record


def metric(glob: str, step: str) -> Any:
    record = pb.Record()
    record.metric.glob_name, record.metric.step_metric = glob, step
    return record


def of(run: ls.Run, name: str) -> dict[int, float]:
    frame = run.frame("Loss", name)
    return dict(zip(frame["step"].tolist(), frame["value"].tolist(), strict=True))


def test_pieces_of_records_are_put_together_at_every_place_in_a_block(tmp_path: Path) -> None:
    for extra in range(0, 40):  # so that the end of a block falls on every place of a head
        note = pb.Record()
        note.output.line = "x" * (BLOCK - 60 - extra)
        path = log(tmp_path / "run-a.wandb", note, history(1, loss="1.5"), history(2, loss="0.5"))
        problems: list[str] = []
        found = list(wandb_records(path, problems, lambda *_: None, 0, 1))
        assert not problems
        assert [record.WhichOneof("record_type") for record in found] == ["output", "history", "history"]
        assert found[0].output.line == note.output.line


def test_a_file_cut_off_anywhere_gives_what_came_before(trainings: dict[str, Training], tmp_path: Path) -> None:
    whole = next(trainings["healthy"].wandb.glob("*.wandb")).read_bytes()
    losses = trainings["healthy"].losses
    torn = tmp_path / "run-x.wandb"
    for end in (len(whole) // 2, len(whole) // 2 + 1, BLOCK + 3, BLOCK - 2, len(whole) - 40):
        torn.write_bytes(whole[:end])
        run = ls.import_run(torn)
        found = of(run, "loss")
        assert 20 < len(found) <= 200
        assert found == {step: losses[step] for step in list(losses)[: len(found)]}
        assert len(run.problems) <= 1
        assert run.manifest["status"] == (
            "finished" if len(found) == 200 and not run.problems else run.manifest["status"]
        )
    cut, middle = 0, len(whole) // 2
    for end in range(middle, middle + 7):  # no record is as short: at most one of these is the end of one
        torn.write_bytes(whole[:end])
        run = ls.import_run(torn)
        assert run.manifest["status"] == "no end was recorded"
        cut += any("is cut off" in problem for problem in run.problems)
    assert cut >= 6
    torn.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    assert "is damaged" in ls.import_run(torn).problems[0]


def test_another_file_is_refused(tmp_path: Path) -> None:
    for data, message in (
        (b"", "it has 0 bytes"),
        (b"PK\x03\x04aaaaaa", "begins with"),
        (b":W&B\xe1\xbe\x07", "version 7"),
    ):
        path = tmp_path / "run-a.wandb"
        path.write_bytes(data)
        with pytest.raises(ls.RunError, match=message):
            ls.import_run(path, tmp_path / "out")
    with pytest.raises(ls.RunError, match="no history of numbers"):
        ls.import_run(log(tmp_path / "run-b.wandb", history(1, text='"a"')), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_steps_are_counted_as_the_run_defines_them(tmp_path: Path) -> None:
    rows = [history(n, **{"train/loss": str(n), "train/global_step": str(10 * n)}) for n in range(1, 4)]
    last = history(4, **{"train/loss": "9"})
    run = ls.import_run(log(tmp_path / "run-a.wandb", metric("*", "train/global_step"), *rows, last))
    assert of(run, "loss") == {10: 1.0, 20: 2.0, 30: 9.0}
    assert "1 rows have no train/global_step" in " ".join(run.manifest["imported"]["notes"])
    assert of(ls.import_run(tmp_path / "run-a.wandb", step="_step"), "loss") == {1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0}
    with pytest.raises(ls.RunError, match="Did you mean 'train/global_step'"):
        ls.import_run(tmp_path / "run-a.wandb", step="train/globalstep")


def test_values_of_every_kind(tmp_path: Path) -> None:
    row = history(
        1, loss="1.5", inf="Infinity", nan="NaN", large="9" * 400, flag="true", none="null", a__b="2",
        c='{"d": {"e": 3}}', text='"x"', picture='{"_type": "image-file"}', h___type='"histogram"', h__values="[1]",
    )  # fmt: skip
    typed = pb.Record()
    typed.history.step.num = 2
    kinds = "value" in pb.HistoryItem.DESCRIPTOR.oneofs_by_name
    if kinds:
        item = typed.history.item.add()
        item.key, item.number = "loss", 0.1
    frame = ls.import_run(log(tmp_path / "run-a.wandb", row, typed)).frame("Loss")
    found = {row.name: row.value for row in frame[frame["step"] == 1].itertuples()}
    assert {name: value for name, value in found.items() if value == value} == {
        "loss": 1.5, "flag": 1.0, "a.b": 2.0, "c.d.e": 3.0,
    }  # fmt: skip
    assert set(frame[frame["value"].isna()]["status"]) == {"inf", "nan"}
    assert not kinds or frame[frame["step"] == 2]["value"].tolist() == [0.1]
    left_out = ls.import_run(tmp_path / "run-a.wandb").manifest["imported"]["left_out"]
    assert left_out == {"text": "1 × text", "picture": "1 × image-file", "h": "1 × histogram"}


def test_a_resumed_run_is_one_and_latest_run_is_none_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "wandb"
    old, new, other = (folder / f"offline-run-2026010{n}_120000-{i}" for n, i in ((1, "aaa"), (2, "aaa"), (3, "bbb")))
    log(old / "run-aaa.wandb", *(history(n, loss="1") for n in range(5)))
    log(new / "run-aaa.wandb", *(history(n, loss="2") for n in range(3, 8)))
    log(other / "run-bbb.wandb", history(1, loss="3"))
    (folder / "latest-run").symlink_to(other.name)
    runs = {run.path.name: run for run in ls.import_runs(folder, tmp_path / "out") if run.path}
    assert set(runs) == {new.name, other.name}
    assert of(runs[new.name], "loss") == {0: 1.0, 1: 1.0, 2: 1.0} | dict.fromkeys(range(3, 8), 2.0)
    assert [entry["start_step"] for entry in runs[new.name].manifest["attempts"]] == [0, 2]
    assert len(ls.import_run(folder / "latest-run").frame()) == 1


def test_without_the_package_the_error_names_the_extra(trainings: dict[str, Training]) -> None:
    program = f"""
import sys
sys.modules["wandb"] = sys.modules["tensorboard"] = None
import learnscope as ls
for source in ({str(trainings["healthy"].wandb)!r}, {str(trainings["healthy"].board)!r}):
    try:
        ls.import_run(source)
    except ls.RunError as error:
        print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    first, second = result.stdout.splitlines()
    assert "pip install 'learnscope[wandb]'" in first
    assert "pip install 'learnscope[tensorboard]'" in second


def test_the_reader_that_wandb_itself_had_gives_the_same(trainings: dict[str, Training]) -> None:
    datastore = pytest.importorskip("wandb.sdk.internal.datastore", reason="later versions of wandb have no reader")
    path = next(trainings["healthy"].wandb.glob("*.wandb"))
    store = datastore.DataStore()
    store.open_for_scan(str(path))
    theirs = list(iter(store.scan_data, None))
    ours = [record.SerializeToString() for record in wandb_records(path, [], lambda *_: None, 0, 1)]
    assert ours == [pb.Record.FromString(body).SerializeToString() for body in theirs]
