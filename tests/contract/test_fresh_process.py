"""The contract in fresh processes: what is imported late must not draw from the generators that a loop draws from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contract.probes import packaged

PROGRAM = Path(__file__).with_name("fresh.py")
OF_ADAPTERS = [name for name in packaged() if name not in packaged(adapters=False)]


def differences(folder: Path, *names: str) -> list[str]:
    command = [sys.executable, str(PROGRAM), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("names", [packaged(adapters=False), OF_ADAPTERS, ["console"]], ids=["all", "adapters", "sink"])
def test_all_together_move_no_generator(names: list[str], tmp_path: Path) -> None:
    assert differences(tmp_path, *names) == []


def test_what_a_probe_or_a_sink_imports_late_moves_no_generator(tmp_path: Path) -> None:
    """In each part of a measurement, for the first time."""
    assert differences(tmp_path, "late") == []


@pytest.mark.soak
@pytest.mark.parametrize("name", packaged())
def test_each_alone_moves_no_generator(name: str, tmp_path: Path) -> None:
    assert differences(tmp_path, name) == []
