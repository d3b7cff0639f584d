"""MLflow and Trackio, in an environment of their own: their own readers read back what was written."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sinks.environment import trackers_environment

PROGRAM = Path(__file__).with_name("tracked.py")
SOURCE = Path(__file__).parents[2] / "src"


def tracked(tool: str, folder: Path) -> dict[str, Any]:
    python = trackers_environment()
    command = [str(python), str(PROGRAM), tool, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    assert len(found["recorded"]) > 100
    assert found["read"] == found["recorded"]
    assert {"gradients/norm", "gradients/norm/layers-max", "outputs/loss"} <= {key for _, key, _ in found["read"]}
    assert found["as_unwatched"], "the import of a tracker draws random numbers"
    assert found["name"] == "run"
    return found


@pytest.mark.soak
def test_mlflow(tmp_path: Path) -> None:
    found = tracked("mlflow", tmp_path)
    (first,), (second,) = (account.values() for account in found["accounts"])
    assert first["kept"] == second["kept"], "the resumed session goes on in the same run"
    assert (first["dropped"], first["errors"]) == (0, 0)
    assert first["taken"] > 10
    assert list(found["alerts"]) == ["learnscope.alert.nonfinite"]
    assert found["alerts"]["learnscope.alert.nonfinite"].startswith("critical: ")
    assert found["status"] == "FINISHED"
    assert json.loads(found["params"]["learnscope.model"])["class"] == "Deep"
    assert found["attached"] == {"P/x": 0.5, "mine": 1.0}
    assert found["open_still"] == "RUNNING"


@pytest.mark.soak
def test_trackio(tmp_path: Path) -> None:
    found = tracked("trackio", tmp_path)
    (first,), (second,) = (account.values() for account in found["accounts"])
    assert first["kept"] == second["kept"] == {"project": "digits", "name": "run"}
    assert [level for level, _ in found["alerts"].values()] == ["error"]
    assert found["config"]["learnscope"]["model"]["class"] == "Deep"
    assert found["attached"] == [["P/x", "step", "timestamp"]] * 3 + [["mine", "step", "timestamp"]]
