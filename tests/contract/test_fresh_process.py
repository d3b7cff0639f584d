"""The contract in fresh processes: what is imported late must not draw from the generators that a loop draws from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.probes import packaged
from contract.trainers import TRAINERS

PROGRAM, TRAINING = Path(__file__).with_name("fresh.py"), Path(__file__).with_name("trainers.py")
QUICK = ("raw loop", "accelerate", "lightning")
OF_ADAPTERS = [name for name in packaged() if name not in packaged(adapters=False)]


def printed(program: Path, folder: Path, *arguments: str) -> Any:
    """What a program says last, in a fresh process."""
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def differences(folder: Path, *names: str) -> list[str]:
    found: list[str] = printed(PROGRAM, folder, *names)
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


def test_under_quick_trainers_weights_and_generators_end_as_unwatched(tmp_path: Path) -> None:
    """With late imports in each part of a measurement; a probe that draws each time is the control."""
    found = printed(TRAINING, tmp_path, str(tmp_path), *QUICK, "careless raw loop")
    assert found.pop("careless raw loop") == ["weights", "random", "numpy", "torch"]
    assert found == {name: [] for name in QUICK}


@pytest.mark.soak
@pytest.mark.parametrize("name", TRAINERS)
def test_under_every_trainer_weights_and_generators_end_as_unwatched(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    assert printed(TRAINING, tmp_path, str(tmp_path), name) == {name: []}
    record_property("trainers", 1)
