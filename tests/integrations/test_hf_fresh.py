"""In a process of its own, with everything imported late: weights and random generators end as without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import learnscope as ls
from forked import run_program

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("name", ["Trainer", "SFTTrainer", "GRPOTrainer"])
def test_weights_and_generators_end_as_without_it(name: str, tmp_path: Path) -> None:
    ends = []
    for watched in ([], ["watched"]):
        folder = tmp_path / f"out{len(watched)}"
        result = run_program(Path(__file__).with_name("hf_fresh.py"), name, str(folder), *watched, folder=tmp_path)
        assert result.returncode == 0, result.stderr
        ends.append(json.loads(result.stdout.splitlines()[-1]))
    assert ends[0] == ends[1]
    run = ls.open_run(tmp_path / "out1" / "learnscope")
    assert (run.status, run.last_step, len(run.frame("Loss", "loss"))) == ("finished", 12, 12)
    assert [record.error for record in run.records() if record.error] == []
