"""A `last_checkpoint.pt` that is not this run's at this step: recognised, not used, said so, and replaced."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from telemetry.loops import Net, batches, distance, lines, telemetry_in, train, wide


def torch_bytes(body: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(body, buffer)
    return buffer.getvalue()


class Bomb:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def weights() -> dict[str, Any]:
    return {name: p.detach() + 5 for name, p in Net().named_parameters()}


FOREIGN: dict[str, Callable[[Path], bytes]] = {
    "another run": lambda _: torch_bytes({"model": weights(), "run": "0" * 32, "step": 0}),
    "a state dictionary": lambda _: torch_bytes(Net().state_dict()),
    "a checkpoint of the user's": lambda _: torch_bytes({"model": weights(), "epoch": 3, "step": 0}),
    "a tensor": lambda _: torch_bytes(torch.zeros(3)),
    "a list": lambda _: torch_bytes([1, 2]),
    "other kinds of fields": lambda _: torch_bytes({"model": [1], "run": torch.zeros(2), "step": "now"}),
    "nothing": lambda _: b"",
    "random bytes": lambda _: bytes(range(256)) * 20,
    "truncated": lambda _: torch_bytes({"model": weights(), "run": "x", "step": 0})[:-700],
    "a pickle with code": lambda folder: pickle.dumps(Bomb(folder / "exploded"), protocol=2),
    "an archive with code": lambda folder: torch_bytes({"model": Bomb(folder / "exploded"), "run": "x", "step": 0}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_found_when_a_run_begins(tmp_path: Path, kind: str) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "last_checkpoint.pt").write_bytes(FOREIGN[kind](tmp_path))
    kept = []
    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, optimizer, batches(3), telemetry, after=lambda _: kept.append(wide(model)))
    first, second, third = lines(telemetry)
    assert set(first["weight_delta"].values()) == {None}
    reason = first["status"]["weight_delta.overall"]
    assert "last_checkpoint.pt" in reason
    anothers = kind in ("another run", "a checkpoint of the user's")
    assert ("is of another run" if anothers else "is not a checkpoint of this kind, or damaged") in reason
    assert second["weight_delta"]["overall"] == pytest.approx(distance(kept[1], kept[0]), rel=1e-6)
    assert third["weight_delta"]["overall"] == pytest.approx(distance(kept[2], kept[1]), rel=1e-6)
    assert not (tmp_path / "exploded").exists(), "code of the file has run"


@pytest.mark.parametrize("kind", FOREIGN)
def test_put_in_its_place_in_mid_training(tmp_path: Path, kind: str) -> None:
    """As when the user's own checkpoint has the same name: never compared with, and the next delta is right again."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []

    def after(step: int) -> None:
        kept.append(wide(model))
        if step == 2:
            telemetry.checkpoint_file.write_bytes(FOREIGN[kind](tmp_path))

    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, optimizer, batches(5), telemetry, after=after)
    found = lines(telemetry)
    assert found[2]["weight_delta"]["overall"] is None
    assert "last_checkpoint.pt" in found[2]["status"]["weight_delta.overall"]
    assert "weight_delta_since" not in found[2]
    for number in (1, 3, 4):
        expected = distance(kept[number], kept[number - 1])
        assert found[number]["weight_delta"]["overall"] == pytest.approx(expected, rel=1e-6)
    assert not (tmp_path / "exploded").exists(), "code of the file has run"


def test_the_bombs_would_go_off(tmp_path: Path) -> None:
    """The positive control of both tests above."""
    pickle.loads(FOREIGN["a pickle with code"](tmp_path))
    assert (tmp_path / "exploded").exists()
    (tmp_path / "exploded").rmdir()
    torch.load(io.BytesIO(FOREIGN["an archive with code"](tmp_path)), weights_only=False)
    assert (tmp_path / "exploded").exists()


def test_an_older_copy_of_this_runs_own_file(tmp_path: Path) -> None:
    """Its step is not the one that the delta would claim to span from."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    copies: list[bytes] = []

    def after(step: int) -> None:
        copies.append(telemetry.checkpoint_file.read_bytes())
        if step == 3:
            telemetry.checkpoint_file.write_bytes(copies[0])

    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, optimizer, batches(4), telemetry, after=after)
    last = lines(telemetry)[3]
    assert last["weight_delta"]["overall"] is None
    assert "no longer holds the weights of step 3" in last["status"]["weight_delta.overall"]


@pytest.mark.parametrize("change", ["shape", "name", "ahead"])
def test_found_when_a_run_is_resumed(tmp_path: Path, change: str) -> None:
    """This run's own by its mark, but not of this model, or of a step that is still to come."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, optimizer, batches(2), telemetry)
    body = torch.load(telemetry.checkpoint_file, weights_only=True)
    if change == "shape":
        body["model"]["head.weight"] = torch.zeros(3, 5)
    elif change == "name":
        body["model"]["tail.weight"] = body["model"].pop("head.weight")
    else:
        body["step"] = 100
    torch.save(body, telemetry.checkpoint_file)
    kept = []
    with telemetry_in(tmp_path / "t", resume=True) as again:
        train(model, optimizer, batches(2), again, start=3, after=lambda _: kept.append(wide(model)))
    third, fourth = lines(again)[2:]
    assert third["weight_delta"]["overall"] is None
    words = "lies ahead of step 3" if change == "ahead" else "other parameters"
    assert words in third["status"]["weight_delta.overall"]
    assert fourth["weight_delta"]["overall"] == pytest.approx(distance(kept[1], kept[0]), rel=1e-6)
