"""The benchmarks run: their figures are for `make bench`, where nothing else disturbs them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from forked import run_program

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = sorted(BENCH.glob("*.py"))


def test_every_benchmark_can_be_imported_and_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    assert SCRIPTS
    for script in SCRIPTS:
        monkeypatch.setattr(sys, "argv", [str(script), "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == 0, script.name
        assert "--quick" in capsys.readouterr().out, script.name


@pytest.mark.soak
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_benchmark_runs(script: Path, tmp_path: Path) -> None:
    result = run_program(script, "--quick", folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()
