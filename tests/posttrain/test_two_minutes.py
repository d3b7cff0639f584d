"""The documented command on a GPT-2 with its real vocabulary: how much of the processor it takes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as tf

from learnscope.posttrain.planning.depth import FEWEST

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_a_bare_gpt2_of_two_layers_takes_two_minutes_of_two_cores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(tf.GPT2LMHeadModel(tf.GPT2Config(n_layer=2)).state_dict(), tmp_path / "model.pt")
    command = [sys.executable, ROOT / "analyze_model.py", "--model_path", "model.pt", "--output_dir", "out"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # seconds of the processor, on one thread: other work on the machine does not count
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 240
    body = json.loads((tmp_path / "out" / "analysis_results.json").read_text())
    assert body["not_run"] == {}
    assert body["robustness"]["attacks"]["notes"]["examples"] >= FEWEST["robustness"]
    gap = next(row for row in body["robustness"]["attacks"]["rows"] if "robustness_gap" in row["values"])
    assert gap["values"]["robustness_gap_low"] is not None, "there are enough examples for an interval"
