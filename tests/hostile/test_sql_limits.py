"""SQL that would take the machine with it is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import learnscope as ls
from learnscope.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql") / "run"
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=folder, probes=[ls.LearningRate(every=1), ls.GradientFlow(every=1)]):
        for _ in range(40):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
    return folder


def test_a_query_without_end_is_stopped(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ls.RunError, match=r"took more than 0\.5 seconds: narrow it"):
        ls.query("select count(*) from range(100000000000) a, range(100000000000) b", folder, seconds=0.5)
    assert time.monotonic() - began < 20
    assert len(ls.query("select 1", folder)) == 1, "the next query is not affected"


def test_there_is_a_limit_of_time_by_default() -> None:
    assert ls.query.__kwdefaults__ == {"seconds": 60.0, "memory_mb": 2048}


def test_a_result_that_does_not_fit_is_refused(folder: Path) -> None:
    with pytest.raises(ls.RunError, match=r"result needs more than 256 MB: add a limit"):
        ls.query("select range as i, range + 1 as j, range + 2 as k from range(20000000)", folder, memory_mb=256)


def test_work_that_does_not_fit_is_refused(folder: Path) -> None:
    with pytest.raises(ls.RunError, match="query needs more than 256 MB"):
        ls.query("select list(range) from range(100000000)", folder, memory_mb=256)


def test_a_result_in_pieces_is_the_same(folder: Path) -> None:
    late = "case when range < 200000 then null else range end"  # the first pieces hold nothing else
    answer = ls.query(f"select range as i, {late} as j, range % 2 = 0 as b from range(300000)", folder)
    assert answer["i"].tolist() == list(range(300000))
    assert answer["j"].isna().sum() == 200000
    assert answer["j"].dropna().tolist() == list(range(200000, 300000))
    assert answer["b"].tolist()[:3] == [True, False, True]
    empty = ls.query("select step, value from records where step < 0", folder)
    assert list(empty.columns) == ["step", "value"]
    assert len(empty) == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_limit_that_cannot_be_meant(folder: Path, seconds: float) -> None:
    with pytest.raises(ValueError, match="a positive number"):
        ls.query("select 1", folder, seconds=seconds)


def test_the_command_has_the_same_limits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endless = "select count(*) from range(100000000000) a, range(100000000000) b"
    assert main(["query", endless, str(folder), "--seconds", "0.5"]) == 2
    assert "took more than 0.5 seconds" in capsys.readouterr().err
    large = "select range as i, range + 1 as j, range + 2 as k from range(20000000)"
    assert main(["query", large, str(folder), "--memory-mb", "256"]) == 2
    assert "result needs more than 256 MB" in capsys.readouterr().err
    assert main(["query", "select 1", str(folder), "--seconds", "0"]) == 0, "0 is no limit"
    for wrong in (["--seconds", "-1"], ["--seconds", "nan"], ["--memory-mb", "0"]):
        assert main(["query", "select 1", str(folder), *wrong]) == 2
