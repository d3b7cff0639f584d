"""Opening a session imports no large package that it does not need: compilers, data frames, plots, trainers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 230
"""Modules, of Python's own library too: each takes about a millisecond."""


WAYS = ["none", "AdamW", "none with holdout", "AdamW with holdout"]


@pytest.fixture(scope="module")
def imported() -> dict[str, tuple[list[str], int]]:
    """What a session of each way imports in a process that has imported torch alone."""
    command = [sys.executable, str(Path(__file__).with_name("start_up.py")), *WAYS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(WAYS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_watching_imports_no_large_module_and_not_many(way: str, imported: dict[str, tuple[list[str], int]]) -> None:
    large, modules = imported[way]
    assert large == []
    assert 50 < modules <= MOST
