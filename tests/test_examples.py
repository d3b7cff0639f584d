"""Every example runs to its end, in a folder of its own, without a network. What they train, they train for less long:
that the phenomena are there is held by tests/findings, tests/dynamics and tests/demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked import run_program

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SHORTER = {
    "analysis_during_training": ["--epochs", "3"],
    "analysis_multi_phenomenon": ["--steps", "30", "--epochs", "3"],
    "analysis_post_hoc": ["--epochs", "0", "1", "2"],
    "import_runs": ["--steps", "60"],
    "telemetry_siamese": ["--epochs", "2", "--variants", "frozen", "swapped"],
    "accelerate_digits": ["--epochs", "2"],
    "lightning_digits": ["--epochs", "2"],
    "trl_grpo_analysis": ["--steps", "3"],
}


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    result = run_program(example, *SHORTER.get(example.stem, []), folder=tmp_path, strict=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip(), "an example shows something"
