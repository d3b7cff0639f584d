"""Opening a session imports no large package that it does not need: compilers, data frames, plots, trainers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 220
"""Modules, of Python's own library too: each takes about a millisecond."""


@pytest.mark.parametrize("way", ["none", "AdamW", "none with holdout", "AdamW with holdout"])
def test_watching_imports_no_large_module_and_not_many(way: str) -> None:
    program = Path(__file__).with_name("start_up.py")
    done = subprocess.run([sys.executable, str(program), way], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    large, modules = json.loads(done.stdout.splitlines()[-1])
    assert large == []
    assert 50 < modules <= MOST
