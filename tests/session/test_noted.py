"""Numbers that a loop logs at every step become the same lines as any other record, by a shorter way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.record import Record
from learnscope.session.steps.fed import FedProbes


def train(path: Path, values: list[dict[str, Any]], **options: Any) -> list[Record]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=path, probes=[ls.Loss()], strict=True, **options) as w:
        for each in values:
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            w.log(**each)
    return [record for record in ls.open_run(path).records() if record.probe == "Loss"]


def content(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.body().items() if key not in ("time", "cost")}


VALUES: list[dict[str, Any]] = [
    {"loss": 0.1 + 0.2}, {"loss": torch.tensor(0.1)}, {"loss": 1e-310, "tokens": 64}, {"loss": 1.0, "lr %s": 1e22},
    {"loss": float("nan")}, {"loss": 2.5, "<a number>": 3.0}, {"loss": 2**60}, {"flag": True}, {"loss": -0.0},
    {"naïve\u202e": 1.5, "loss": 7},
]  # fmt: skip


@pytest.mark.parametrize("epochs", [False, True])
def test_the_lines_are_those_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: bool) -> None:
    """Against the same session with the shorter way closed."""
    short = train(tmp_path / "short", VALUES, write_every=4 if epochs else 50)
    monkeypatch.setattr(FedProbes, "note", lambda *_: False)
    long = train(tmp_path / "long", VALUES)
    assert [content(record) for record in short] == [content(record) for record in long]
    assert [record.step for record in short] == list(range(1, len(VALUES) + 1))
    assert all(record.cost > 0 and record.time > 1e9 for record in short)


def test_lines_are_written_as_a_record_writes_them(tmp_path: Path) -> None:
    train(tmp_path / "run", VALUES)
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert len(lines) == len(VALUES)
    for line in lines:
        assert Record.from_json(line).to_json() == line


def test_a_sink_is_given_every_record(tmp_path: Path) -> None:
    class Kept:
        direct = True

        def __init__(self) -> None:
            self.records: list[Record] = []

        def write(self, record: Record) -> None:
            self.records.append(record)

        def close(self) -> None:
            pass

    kept = Kept()
    recorded = train(tmp_path / "run", VALUES, sinks=[kept])
    assert [record.to_json() for record in kept.records] == [record.to_json() for record in recorded]


def test_a_budget_still_counts_what_was_due(tmp_path: Path) -> None:
    """With a budget a firing may be refused, so that each is asked for."""
    records = train(tmp_path / "run", [{"loss": 1.0}] * 20, budget=1.0)
    assert {record.step for record in records} <= set(range(1, 21))
    assert records[0].step == 1


def test_numbers_that_are_no_floats_keep_their_kind(tmp_path: Path) -> None:
    train(tmp_path / "run", [{"loss": 1.0, "tokens": 64}])
    columns = json.loads((tmp_path / "run" / "records.jsonl").read_text())["tables"][0]["columns"]
    assert {column["name"]: column["values"] for column in columns} == {"loss": [1.0], "tokens": [64]}
    assert [type(column["values"][0]) for column in columns] == [float, int]
