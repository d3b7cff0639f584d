"""The contract in fresh processes: what is imported late must not draw from the generators that a loop draws from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract import sinks
from contract.probes import packaged
from contract.trainers import TRAINERS

PROGRAM, TRAINING = Path(__file__).with_name("fresh.py"), Path(__file__).with_name("trainers.py")
QUICK = ("raw loop", "accelerate", "lightning")
SINKS = [name for name in sinks.packaged() if name not in sinks.ELSEWHERE]
OF_ADAPTERS = [name for name in packaged() if name not in packaged(adapters=False)]


def printed(program: Path, folder: Path, *arguments: str) -> Any:
    """What a program says last, in a fresh process."""
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def differences(folder: Path, *groups: list[str]) -> list[list[str]]:
    """What differs for each group of probes and sinks, each in a process that has imported nothing of ours."""
    arguments = [word for names in groups for word in ("--", *names)]
    found: list[list[str]] = printed(PROGRAM, folder, *arguments[1:])
    return found


TOGETHER = {"all": packaged(adapters=False), "adapters": OF_ADAPTERS, "sinks": SINKS, "late": ["late"]}
"""`late`: what a probe or a sink imports in each part of a measurement, for the first time."""


@pytest.fixture(scope="module")
def differing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    found = differences(tmp_path_factory.mktemp("fresh"), *TOGETHER.values())
    return dict(zip(TOGETHER, found, strict=True))


@pytest.mark.parametrize("group", TOGETHER)
def test_all_together_move_no_generator(group: str, differing: dict[str, list[str]]) -> None:
    assert differing[group] == []


def test_every_sink_is_held_to_it_here_or_in_an_environment_of_its_own() -> None:
    assert len(SINKS) >= 4
    assert set(sinks.ELSEWHERE) <= set(sinks.packaged())


@pytest.mark.soak
@pytest.mark.parametrize("name", SINKS)
def test_each_sink_alone_moves_no_generator(name: str, tmp_path: Path) -> None:
    assert differences(tmp_path, [name]) == [[]]


@pytest.mark.soak
@pytest.mark.parametrize("name", packaged())
def test_each_alone_moves_no_generator(name: str, tmp_path: Path) -> None:
    assert differences(tmp_path, [name]) == [[]]


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
