"""Opening a session imports no large package that it does not need: compilers, data frames, plots, trainers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_watching_imports_no_large_module() -> None:
    program = Path(__file__).with_name("start_up.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"none": [], "AdamW": []}
