"""run.json: what a session writes there has a known shape, so that a damaged value is left out and not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostile.corrupted import sound_run
from learnscope.store.manifest import _SHAPE, read_manifest

FREE = ("probes.", "optimizers.groups.")
"""Options of probes and of optimizers, which may be of any type: readers ask for it."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_run(tmp_path_factory.mktemp("written") / "run") / "run.json"


def unknown(value: Any, shape: Any, place: str) -> list[str]:
    """The places for which no type is stated."""
    if shape is None:
        return [place]
    if isinstance(value, dict) and isinstance(shape, dict) and shape:
        below = [unknown(item, shape.get(key, shape.get("*")), f"{place}.{key}") for key, item in value.items()]
        return [each for several in below for each in several]
    if isinstance(value, list) and isinstance(shape, list):
        return [each for item in value for each in unknown(item, shape[0], place)]
    return []


def test_every_value_that_a_session_writes_has_a_known_type(written: Path) -> None:
    body = json.loads(written.read_text())
    del body["schema"]  # looked at first, when a folder is opened
    missing = {place[1:] for place in unknown(body, _SHAPE, "")}
    assert {place for place in missing if not place.startswith(FREE)} == set()


def test_a_damaged_number_of_an_attempt_is_left_out_and_said(written: Path, tmp_path: Path) -> None:
    body = json.loads(written.read_text())
    body["attempts"][0]["skipped_steps"] = "x"
    body["environment"]["threads"] = {"a": 1}
    (tmp_path / "run.json").write_text(json.dumps(body))
    manifest, problems = read_manifest(tmp_path / "run.json")
    assert "skipped_steps" not in manifest["attempts"][0]
    assert "threads" not in manifest["environment"]
    assert [problem.split(" ")[0] for problem in problems] == ["environment.threads", "attempts.skipped_steps"]


def test_a_run_without_attempts_or_probes_has_none_of_them(written: Path, tmp_path: Path) -> None:
    """Null, or nothing at all: readers are given an empty list and an empty object."""
    for damage in ({"attempts": None, "probes": None}, {}):
        body = {
            key: value for key, value in json.loads(written.read_text()).items() if key not in ("attempts", "probes")
        }
        (tmp_path / "run.json").write_text(json.dumps(body | damage))
        manifest, _ = read_manifest(tmp_path / "run.json")
        assert (manifest["attempts"], manifest["probes"]) == ([], {})
