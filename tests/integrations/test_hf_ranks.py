"""Two ranks: one run, written by rank 0, and an alert that stops both at the same step."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import learnscope as ls
from forked import start_program

pytestmark = pytest.mark.soak


def test_two_ranks_have_one_run_and_stop_together(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program, prints = Path(__file__).with_name("hf_ranks.py"), [tmp_path / f"rank{rank}" for rank in (0, 1)]
    ranks = [
        start_program(
            program, str(rank), port, str(tmp_path / "out"), folder=tmp_path, out=out, error=out.with_suffix(".error")
        )
        for rank, out in enumerate(prints)
    ]
    for process, out in zip(ranks, prints, strict=True):
        process.join(240)
        status = process.exitcode
        process.kill()
        assert status == 0, out.with_suffix(".error").read_text()
    last = [out.read_text().splitlines()[-1] for out in prints]
    run = ls.open_run(tmp_path / "out" / "learnscope")
    assert 5 <= run.last_step < 200
    assert last == [f"rank 0: {run.last_step} steps, 1 runs, 2", f"rank 1: {run.last_step} steps, 0 runs, 2"]
    assert run.status == "finished"
    assert [path.name for path in (tmp_path / "out").iterdir() if (path / "run.json").exists()] == ["learnscope"]
    frame = run.frame("Loss", "loss")
    assert list(frame[frame.status == "nan"].step)[:1] == [5]
