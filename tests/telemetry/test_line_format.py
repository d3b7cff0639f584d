"""Lines: strict JSON, the documented keys in their order, one write each, and sections that can be switched off."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learnscope.core.probe import ProbeWarning
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from telemetry.loops import Net, batches, lines, telemetry_in, train

SECTIONS = {
    "track_gradients": {"gradient_norm"},
    "track_weight_delta": {"weight_delta", "weight_delta_since"},
    "track_learning_rates": {"learning_rates"},
    "track_holdout_logits": {"holdout_logits"},
    "track_batch_stats": {"batch_stats"},
}
HEAD = ["batch_idx", "epoch", "global_step", "timestamp"]


def run(folder: Path, count: int = 2, **options: Any) -> list[dict[str, Any]]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telemetry_in(folder, **options) as telemetry:
        telemetry.set_holdout_data(batches(2))
        train(model, optimizer, batches(count), telemetry)
    return lines(telemetry)


def test_keys_stand_in_the_order_of_the_document(tmp_path: Path) -> None:
    first, second = run(tmp_path / "t")
    body = ["gradient_norm", "weight_delta", "learning_rates", "holdout_logits", "batch_stats"]
    assert list(first) == [*HEAD, *body, "status"]
    assert list(second) == [*HEAD, *body[:2], "weight_delta_since", *body[2:]]


def test_times_are_iso_and_now(tmp_path: Path) -> None:
    before = datetime.now()
    times = [datetime.fromisoformat(line["timestamp"]) for line in run(tmp_path / "t", 3)]
    assert before <= times[0] <= times[1] <= times[2] <= datetime.now() + timedelta(seconds=1)


@pytest.mark.parametrize("off", SECTIONS)
def test_a_section_that_is_switched_off_is_absent(tmp_path: Path, off: str) -> None:
    everything = set(run(tmp_path / "a")[1])
    found = run(tmp_path / "b", **{off: False})
    assert set(found[1]) == everything - SECTIONS[off]
    assert (tmp_path / "b" / "last_checkpoint.pt").exists() == (off != "track_weight_delta")
    for line in found:
        assert not [key for key in line.get("status", {}) if key.split(".")[0] in SECTIONS[off]]


def test_everything_switched_off_leaves_the_place_of_the_batch(tmp_path: Path) -> None:
    assert list(run(tmp_path / "t", **dict.fromkeys(SECTIONS, False))[0]) == HEAD


def test_disabled_telemetry_touches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for output_dir in (None, tmp_path / "t"):
        with TrainingTelemetry(TelemetryConfig(enabled=False, collect_every_n=1, output_dir=output_dir)) as telemetry:
            telemetry.set_holdout_data(batches(1))
            train(model, optimizer, batches(3), telemetry)
        assert telemetry.global_step == 0
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_telemetry_in_the_working_directory_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with TrainingTelemetry(TelemetryConfig(collect_every_n=1)) as telemetry:
        telemetry.on_batch_end(Net(), None, 1, 0)
    assert len(lines(tmp_path / "telemetry" / "telemetry.jsonl")) == 1
    assert telemetry.metrics_file.resolve() == tmp_path / "telemetry" / "telemetry.jsonl"


class TestLogged:
    def test_numbers_of_the_loop(self, tmp_path: Path) -> None:
        loss = torch.tensor(0.75, requires_grad=True)
        with telemetry_in(tmp_path / "t") as telemetry:
            telemetry.on_batch_end(Net(), None, 1, 0, loss=loss, tokens=12, rate=np.float32(0.5), bad=float("inf"))
            telemetry.on_batch_end(Net(), None, 2, 0)
        first, second = lines(telemetry)
        assert first["logged"] == {"loss": 0.75, "tokens": 12, "rate": 0.5, "bad": None}
        assert first["status"]["logged.bad"] == "inf"
        assert "logged" not in second

    def test_what_is_no_number_is_null_with_the_reason(self, tmp_path: Path) -> None:
        with telemetry_in(tmp_path / "t", strict=False) as telemetry:
            with pytest.warns(ProbeWarning, match="note is str"):
                telemetry.on_batch_end(Net(), None, 1, 0, loss=1.0, note="hello")
        (line,) = lines(telemetry)
        assert line["logged"] is None
        assert "note is str, not a number" in line["status"]["logged"]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the writes to the file of lines, as the system sees them."""
    seen: list[int] = []
    write = os.write

    def counted(file: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith("telemetry.jsonl"):
            seen.append(len(data))
        return write(file, data)

    monkeypatch.setattr(os, "write", counted)
    return seen


@pytest.mark.parametrize("rows", [10, 10_000])
def test_one_write_a_line_however_long(tmp_path: Path, writes: list[int], rows: int) -> None:
    model = Net()
    with telemetry_in(tmp_path / "t", holdout_size=rows) as telemetry:
        telemetry.set_holdout_data(batches(rows // 10, size=10) if rows < 100 else batches(10, size=rows // 10))
        for number in range(1, 4):
            telemetry.on_batch_end(model, None, number, 0)
        assert len(writes) == 3
    assert sum(writes) == telemetry.metrics_file.stat().st_size
    found = lines(telemetry)
    assert [len(line["holdout_logits"]["logits"]) for line in found] == [rows] * 3
    assert writes[0] > rows * 20


def test_a_line_of_fifty_pairs_is_as_small_as_the_document_says(tmp_path: Path) -> None:
    """About 5 kB for everything, logits included."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.set_holdout_data(batches(7))
        train(model, optimizer, batches(2), telemetry)
    assert max(map(len, telemetry.metrics_file.read_bytes().splitlines())) < 5000


def test_reading_the_file_as_the_document_does(tmp_path: Path) -> None:
    """And as a table, with the same numbers."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, optimizer, batches(4), telemetry)
    frame = telemetry.to_dataframe()
    found = lines(telemetry)
    assert frame["batch_idx"].tolist() == [1, 2, 3, 4]
    assert frame["gradient_norm.overall"].tolist() == [line["gradient_norm"]["overall"] for line in found]
    assert frame["weight_delta.head"].tolist()[1:] == [line["weight_delta"]["head"] for line in found[1:]]
    assert np.isnan(frame["weight_delta.head"].iloc[0])
