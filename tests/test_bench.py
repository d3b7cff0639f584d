"""The benchmarks run: their figures are for `make bench`, where nothing else disturbs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked import run_program

BENCH = Path(__file__).parents[1] / "bench"


@pytest.mark.parametrize("script", sorted(BENCH.glob("*.py")), ids=lambda path: path.name)
def test_a_benchmark_runs(script: Path, tmp_path: Path) -> None:
    result = run_program(script, "--quick", folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()
