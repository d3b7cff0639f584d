"""Damages that were once met with a foreign exception, by their names."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import learnscope as ls
from hostile.corrupted import SAVED, STEPS, copy_of, sound_run
from learnscope.store.columnar.catalog import read_catalog


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return copy_of(sound, tmp_path / "run")


def strange(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A change of the catalog's body, which keeps the right check sum."""

    def harm(folder: Path) -> None:
        path = folder / "index" / "catalog.json"
        body = json.loads(path.read_text().partition("\n")[2])
        text = change(body) or json.dumps(body)
        path.write_text(f"{zlib.crc32(text.encode())}\n{text}")

    return harm


def put(value: Any, *place: Any) -> Callable[[Path], None]:
    def change(body: Any) -> None:
        for key in place[:-1]:
            body = body[key]
        body[place[-1]] = value

    return strange(change)


ENTRY, BLOCK = ("segments", 0), ("segments", 0, "blocks", 0)
CATALOGS = {
    "a list": strange(lambda _: "[]"),
    "no JSON": strange(lambda _: "{"),
    "10⁵ lists in each other": strange(lambda _: '{"schema": 1, "segments": ' + "[" * 10**5 + "]" * 10**5 + "}"),
    "segments that are none": put(None, "segments"),
    "an entry that is none": put(1, *ENTRY),
    "a start that is text": put("0", *ENTRY, "start"),
    "a hole before the first line": put(7, *ENTRY, "first"),
    "a block that is none": put(1, *BLOCK),
    "a form that is not there": put(99, *BLOCK, 0),
    "a form that is a list": put([], *BLOCK, 0),
    "-1 records": put(-1, *BLOCK, 1),
    "10³⁰ records": put(10**30, *BLOCK, 1),
    "half a record": put(0.5, *BLOCK, 1),
    "no sums": put([], *BLOCK, 2),
    "sums that are a number": put(0, *BLOCK, 2),
    "a sum that is text": put("x", *BLOCK, 2, 0),
    "a form without text": put({}, "forms", 0),
    "a form of no record": put("{}", "forms", 0, "text"),
    "a form with a label too many": put([1.0] * 99, "forms", 0, "labels"),
    "single records that are none": put([[0, "{}"]], *ENTRY, "loose"),
    "single records without a place": put([["{}"]], *ENTRY, "loose"),
    "problems that are a number": put(1.0, *ENTRY, "problems"),
    "damaged lines that are no bytes": put(["é\u202e"], *ENTRY, "damaged"),
}


@pytest.mark.parametrize("name", CATALOGS)
def test_an_index_with_a_strange_catalog_is_not_used(name: str, folder: Path, sound: Path) -> None:
    assert read_catalog(sound / "index" / "catalog.json")[0]
    CATALOGS[name](folder)
    run = ls.open_run(folder)
    pd.testing.assert_frame_equal(run.frame(superseded=True), ls.open_run(sound).frame(superseded=True))
    assert run.problems == []
    run.compact()


OPEN = ("probes", "labels", "model.dtypes", "model.layer_parameters", "model.layer_types")


@pytest.mark.parametrize("part", OPEN)
def test_null_for_a_probe_or_a_layer_is_damage(part: str, folder: Path) -> None:
    path = folder / "run.json"
    body = json.loads(path.read_text())
    within = body
    for key in part.split("."):
        within = within[key]
    name = next(iter(within))
    within[name] = None
    path.write_text(json.dumps(body))
    run = ls.open_run(folder)
    assert len(run.frame()) > 0
    assert run.problems == [f"{part}.{name} in run.json is damaged and was left out"]
    run.findings()


def broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def without_its_description(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(path), path)


def of_a_step_that_is_text(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    about = {"step": "4", "snapshots": {"native": "4"}}
    save_file(load_file(path), path, metadata={"learnscope": json.dumps(about)})


@pytest.mark.parametrize("harm", [broken_link, emptied, a_folder, without_its_description, of_a_step_that_is_text])
def test_weights_of_a_step_are_found_beside_a_damaged_state(harm: Callable[[Path], None], folder: Path) -> None:
    harm(folder / "state" / f"step-{SAVED:010}.safetensors")
    run, patch = ls.open_run(folder), folder.parent / "patch.safetensors"
    assert run.export_patch(STEPS, STEPS, patch).path == patch
    with pytest.raises(ls.CheckpointError, match=rf"no weights of step {SAVED}.*there are steps {STEPS}\..*0000000004"):
        run.export_patch(SAVED, STEPS, patch)
