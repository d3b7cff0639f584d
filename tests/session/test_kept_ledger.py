"""The file of the ledger of examples: written no more often than records are, and always as it is at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls


def epoch(w: ls.Watch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for ids in torch.arange(12).split(4):
        x, y = torch.ones(4, 3) * ids[:, None], ids % 2
        optimizer.zero_grad()
        logits = model(x)
        nn.functional.cross_entropy(logits, y).backward()
        optimizer.step()
        w.examples(ids, logits, y)
    w.end_epoch()


def on_disk(folder: Path) -> int:
    """How often each example has been presented, by the file."""
    presentations = set(ls.Ledger.load(folder / "examples.parquet").frame()["presentations"])
    assert len(presentations) == 1
    return int(presentations.pop())


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [1, 2, 3, 4]), (600.0, [1, 1, 1, 1])])
def test_between_two_files_lie_so_many_seconds(tmp_path: Path, seconds: float, expected: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probes = [ls.ExampleLedger(keep_every=1)]
    found = []
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=probes, write_seconds=seconds) as w:
        for _ in expected:
            epoch(w, model, optimizer)
            found.append(on_disk(tmp_path / "run"))
        assert found == expected
        assert set(w.run.examples()["presentations"]) == {len(expected)}
        assert on_disk(tmp_path / "run") == len(expected)
        epoch(w, model, optimizer)
    assert on_disk(tmp_path / "run") == len(expected) + 1


def test_what_waited_is_written_when_a_loop_fails(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probes = [ls.ExampleLedger(keep_every=1)]
    with (
        pytest.raises(KeyError),
        ls.watch(model, optimizer, run=tmp_path / "run", probes=probes, write_seconds=600.0) as w,
    ):
        for _ in range(3):
            epoch(w, model, optimizer)
        raise KeyError
    assert on_disk(tmp_path / "run") == 3


def test_a_step_writes_what_has_waited_long_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import learnscope.session.loop as loop
    import learnscope.session.writing as writing

    now = [1000.0]
    for module in (loop, writing):
        monkeypatch.setattr(module.time, "time", lambda: now[0])
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.ExampleLedger(keep_every=1)]) as w:
        for _ in range(2):
            epoch(w, model, optimizer)
        assert on_disk(tmp_path / "run") == 1
        now[0] += 1.5
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert on_disk(tmp_path / "run") == 2
