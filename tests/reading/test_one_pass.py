"""A report and its findings read the records of a run once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.cli import main
from learnscope.record import Record
from learnscope.store.backend import FolderBackend
from learnscope.store.columnar.blocks import Segment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.GradientFlow(), ls.Loss()]) as w:
        for _ in range(12):
            loss = model(torch.ones(2, 3)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=loss)
    return tmp_path / "run"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    segments, records = FolderBackend.segments, FolderBackend.records

    def count_segments(backend: FolderBackend) -> list[Segment]:
        counted.append(1)
        return segments(backend)

    def count_records(backend: FolderBackend, problems: list[str]) -> Iterator[Record]:
        counted.append(1)
        return records(backend, problems)

    monkeypatch.setattr(FolderBackend, "segments", count_segments)
    monkeypatch.setattr(FolderBackend, "records", count_records)
    return counted


def test_the_method(folder: Path, passes: list[int]) -> None:
    report, findings = ls.open_run(folder).report_with_findings()
    assert (report.exists(), len(passes)) == (True, 1)
    assert findings == ls.open_run(folder).findings()
    passes.clear()
    assert ls.open_run(folder).report() == report
    assert len(passes) == 1


def test_the_command(folder: Path, passes: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    assert "report:" in capsys.readouterr().out
    assert len(passes) == 1
