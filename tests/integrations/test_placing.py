"""Which run a training goes on with after a checkpoint, for all trainers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from torch import nn

import learnscope as ls
from learnscope.integrations.carrying import ABOUT, Carried, carried_as, carried_in, carry, carry_into
from learnscope.integrations.placing import place


def recorded(folder: Path) -> ls.Watch:
    w = ls.watch(nn.Linear(2, 2), run=folder, probes=[ls.Loss()])
    w.step()
    w.log(loss=1.0)
    return w


@pytest.fixture
def checkpoints(tmp_path: Path) -> dict[str, Carried]:
    """Of the run a, in both forms: a folder, and values in a file."""
    w = recorded(tmp_path / "out" / "a")
    (tmp_path / "out" / "checkpoint").mkdir()
    carry_into(tmp_path / "out" / "checkpoint", w, w.save_state())
    values = carry(w)
    w.close()
    return {"folder": carried_in(tmp_path / "out" / "checkpoint"), "file": carried_as(values, tmp_path / "out")}


def test_the_run_is_the_checkpoints_own(checkpoints: dict[str, Carried], tmp_path: Path) -> None:
    """Named or not; a run of another training in the folder that is named is not written over."""
    own, other = tmp_path / "out" / "a", tmp_path / "other"
    recorded(other).close()
    for carried in checkpoints.values():
        state = own / "state" / "step-0000000001.safetensors"
        content = state.read_bytes()
        for wanted, asked in ((own, True), (own, False), (other, True), (tmp_path / "new", True)):
            state.unlink()
            where = place(wanted, carried, asked=asked)
            assert (where.run, where.step, where.resume, where.missing) == (own, 1, True, "")
            assert state.read_bytes() == content, "put back"


def test_a_copy_that_is_named_and_a_folder_that_moved(checkpoints: dict[str, Carried], tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "out" / "a", tmp_path / "copy")
    for carried in checkpoints.values():
        assert place(tmp_path / "copy", carried, asked=True).run == tmp_path / "copy"
    (tmp_path / "out").rename(tmp_path / "moved")
    moved = carried_in(tmp_path / "moved" / "checkpoint")
    assert place(tmp_path / "new", moved, asked=False).run == tmp_path / "moved" / "a"


def test_a_run_that_is_gone(checkpoints: dict[str, Carried], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "out" / "a")
    recorded(tmp_path / "other").close()
    for carried in checkpoints.values():
        where = place(tmp_path / "new", carried, asked=False)
        assert (where.run, where.step, where.resume) == (tmp_path / "new", 1, False)
        assert "is not there any more" in where.missing
        assert place(tmp_path / "other", carried, asked=True).run == tmp_path / "other", "the user says which it is"
    about = tmp_path / "out" / "checkpoint" / ABOUT
    for text, why in ((json.dumps([1]), "cannot be read"), ("{", "cannot be read"), (None, "saved without learnscope")):
        about.unlink() if text is None else about.write_text(text)
        assert why in place(tmp_path / "new", carried_in(about.parent), 3, asked=False).missing
