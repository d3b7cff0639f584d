"""Every example runs to its end, in a folder of its own, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "COLUMNS": "160"}


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error::learnscope.ProbeWarning", str(example)],
        cwd=tmp_path, env={**os.environ, **OFFLINE}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip(), "an example shows something"
