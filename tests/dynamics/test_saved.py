"""An analyzer's file: what comes back is what went in, and what is no such file is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.dynamics.saved import KEY, SavedError, load_session, save_session
from learnscope.record import Column, Measurement, Table
from learnscope.run import open_run
from learnscope.session.manual import ManualSession, own_backend
from learnscope.store.backend import RunError

KIND = "Walker"


class Walk(Probe):
    """A memory of every sort, whose numbers depend on all of it."""

    reads_only: ClassVar[bool] = True

    def measure(self, moment: Moment) -> Measurement:
        state = moment.state
        state["looks"] = state.get("looks", 0) + 1
        state["names"] = [*state.get("names", []), f"ж·{moment.step}"]
        state["sum"] = state.get("sum", 0.1) * 1.1
        state["half/кот"] = state.get("half/кот", torch.zeros(3, dtype=torch.bfloat16)) + torch.tensor(0.7)
        state["table"] = state.get("table", torch.zeros(2, 0))
        state["scalar"] = state.get("scalar", torch.tensor(1.0, dtype=torch.float64)) / 3
        state["_between"] = object()
        number = (
            float(state["sum"]) + float(state["half/кот"].float().sum()) + len(state["names"]) + float(state["scalar"])
        )
        columns = [Column("number", [number, None]), Column("nan", [float("nan"), 2.0])]
        arrays = {
            "x": torch.full((2,), number, dtype=torch.float64),
            "none": torch.zeros(0),
            "yes": torch.tensor([True]),
        }
        return Measurement([Table("layer", ["a/b", "ж"], columns)], arrays=arrays)


def walker(run: Path | None = None) -> ManualSession:
    return ManualSession({"walk": Walk(), "again": Walk()}, own_backend(run), source="dynamics")


def look(session: ManualSession, steps: range) -> None:
    model = nn.Linear(2, 1)
    for step in steps:
        session.open(model)
        session.measure(session.moment("epoch", step=step, epoch=step))


def told(session: ManualSession) -> list[Any]:
    """Everything but the clock."""
    records = [json.loads(record.to_json()) | {"time": 0, "cost": 0} for record in session.run.records()]
    arrays = [
        {name: (array.dtype, array.tolist()) for name, array in session.run.arrays(label, step).items()}
        for label in ("Walk", "Walk_2")
        for step in session.run.array_steps(label)
    ]
    return [records, arrays]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("name", ["a.pkl", "no suffix", "ж.safetensors"])
def test_it_goes_on_as_if_never_interrupted(tmp_path: Path, name: str, folder: bool) -> None:
    whole, half = walker(), walker(tmp_path / "run" if folder else None)
    look(whole, range(1, 7))
    look(half, range(1, 4))
    options = {"n": 3, "none": None, "text": "ж", "deep": {"list": [1, 2.5, True]}}
    path = save_session(tmp_path / name, half, KIND, options)
    saved_options, saved = load_session(path, KIND)
    assert saved_options == options
    again = walker(tmp_path / "another" if folder else None)
    again.restore(saved)
    assert told(again) == told(half)
    look(again, range(4, 7))
    assert told(again) == told(whole)
    assert again.run.manifest["attempts"] == half.run.manifest["attempts"]
    if folder:
        half.close()
        again.close()
        assert len(list(open_run(tmp_path / "another").records())) == 12
        assert open_run(tmp_path / "another").manifest["status"] == "finished"


def test_saving_changes_nothing_and_twice_is_the_same_file(tmp_path: Path) -> None:
    session = walker()
    look(session, range(3))
    save_session(tmp_path / "a", session, KIND, {})
    save_session(tmp_path / "b", session, KIND, {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert "_between" in session.state("walk")


def test_before_the_first_look(tmp_path: Path) -> None:
    save_session(tmp_path / "a", walker(), KIND, {})
    again, whole = walker(), walker()
    again.restore(load_session(tmp_path / "a", KIND)[1])
    look(again, range(2))
    look(whole, range(2))
    assert told(again) == told(whole)


def test_no_model_no_pickle_in_it(tmp_path: Path) -> None:
    session = walker()
    look(session, range(2))
    path = save_session(tmp_path / "a.pkl", session, KIND, {})
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()[KEY])["kind"] == KIND
    whole = path.read_bytes()
    assert whole[8:9] == b"{"
    with pytest.raises((pickle.UnpicklingError, ValueError, LookupError, EOFError, AttributeError)):
        pickle.loads(whole)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_real_pickle_is_refused(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"epoch": 3}, protocol=protocol))
    with pytest.raises(SavedError, match=r"(?i)save the analyzer anew"):
        load_session(tmp_path / "a.pkl", KIND)


def test_a_file_that_begins_as_pickles_do_is_read(tmp_path: Path) -> None:
    """The first byte is a part of the header's length, and that is any multiple of 8."""
    session = walker()
    look(session, range(1))
    began = set()
    for length in range(0, 264, 8):
        path = save_session(tmp_path / "a", session, KIND, {"text": "x" * length})
        began.add(path.read_bytes()[0])
        assert load_session(path, KIND)[0] == {"text": "x" * length}
    assert 0x80 in began


def changed(source: Path, target: Path, change: Any) -> Path:
    """The file with its description and tensors as `change` leaves them."""
    with safe_open(source, framework="pt") as file:
        meta = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(meta, tensors)
    save_file(tensors, target, metadata={KEY: json.dumps(meta)})
    return target


def _damage(meta: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors['["lines"]'][40:60] = 0


def _escape(meta: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors[json.dumps(["array", "arrays/../../x.safetensors", "y"])] = torch.zeros(1)


CHANGES = {
    "version 99": lambda meta, _: meta.update(version=99),
    "schema 99": lambda meta, _: meta.update(schema=99),
    "version None": lambda meta, _: meta.pop("version"),
    "use Runner.load": lambda meta, _: meta.update(kind="Runner"),
    "KeyError": lambda meta, _: meta.pop("states"),
    "damaged": _damage,
    "no place of a run": _escape,
}


@pytest.mark.parametrize("said", CHANGES)
def test_other_files_are_refused_by_what_is_wrong(tmp_path: Path, said: str) -> None:
    session = walker()
    look(session, range(2))
    path = changed(save_session(tmp_path / "a", session, KIND, {}), tmp_path / "b", CHANGES[said])
    with pytest.raises(SavedError, match=said):
        load_session(path, KIND)


def test_torn_and_foreign_files_are_refused(tmp_path: Path) -> None:
    session = walker()
    look(session, range(2))
    whole = save_session(tmp_path / "a", session, KIND, {}).read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        (tmp_path / "torn").write_bytes(whole[:length])
        with pytest.raises(SavedError, match="only a part"):
            load_session(tmp_path / "torn", KIND)
    save_file({"weight": torch.zeros(2)}, tmp_path / "weights")
    with pytest.raises(SavedError, match="not written by an analyzer"):
        load_session(tmp_path / "weights", KIND)
    torch.save({"a": torch.zeros(1)}, tmp_path / "t.pt")
    with pytest.raises(SavedError, match="torch archive"):
        load_session(tmp_path / "t.pt", KIND)
    with pytest.raises(FileNotFoundError):
        load_session(tmp_path / "nothing", KIND)


@pytest.mark.parametrize("options", [{"model": object()}, {"keys": {1: 2}}, {"pair": (1, 2)}])
def test_what_cannot_come_back_as_it_was_is_not_saved(tmp_path: Path, options: dict[str, Any]) -> None:
    session = walker()
    path = save_session(tmp_path / "a", session, KIND, {"first": 1})
    before = path.read_bytes()
    with pytest.raises(SavedError, match="cannot be saved"):
        save_session(path, session, KIND, options)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_a_memory_that_cannot_come_back_is_not_saved(tmp_path: Path) -> None:
    session = walker()
    look(session, range(1))
    session.state("walk")["array"] = np.zeros(2)
    with pytest.raises(SavedError, match="'array' of walk: ndarray"):
        save_session(tmp_path / "a", session, KIND, {})
    assert not list(tmp_path.iterdir())


def test_only_a_fresh_one_can_remember(tmp_path: Path) -> None:
    session = walker()
    look(session, range(1))
    _, saved = load_session(save_session(tmp_path / "a", session, KIND, {}), KIND)
    with pytest.raises(RuntimeError, match="already"):
        session.restore(saved)
    with pytest.raises(ValueError, match="cannot take up the memory of walk, again"):
        ManualSession({"walk": Walk()}, own_backend(None), source="dynamics").restore(saved)


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path) -> None:
    first = walker(tmp_path / "run")
    look(first, range(1))
    first.close()
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(RunError, match="name another folder"):
        walker(tmp_path / "run")
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before


def test_looks_go_on_after_closing(tmp_path: Path) -> None:
    whole, parted = walker(tmp_path / "whole"), walker(tmp_path / "parted")
    look(whole, range(4))
    look(parted, range(2))
    parted.close()
    look(parted, range(2, 4))
    assert told(parted) == told(whole)
    whole.close()
    parted.close()
