"""Which settings are said to differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from learnscope.comparison.settings import ABSENT, differences


def found(*manifests: dict[str, Any], folders: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    labels = [chr(ord("a") + n) for n in range(len(manifests))]
    paths = {label: Path(folders[n]) if folders else None for n, label in enumerate(labels)}
    given = dict(zip(labels, manifests, strict=True))
    return {one.key: list(one.values.values()) for one in differences(given, paths)}


def test_only_what_differs_with_a_value_for_each_run() -> None:
    same = {"class": "Net", "dtypes": {"float32": 10}}
    manifests = [{"model": same, "probes": {"Holdout": {"every": n, "at": "epoch"}}} for n in (10, 10, 20)]
    assert found(*manifests) == {"probes.Holdout.every": [10, 10, 20]}


def test_absent_is_not_null() -> None:
    assert found({"config": {"seed": None}}, {"config": {}}) == {"config.seed": [None, ABSENT]}
    assert found({"config": {"seed": None}}, {"config": {"seed": 0}}) == {"config.seed": [None, 0]}
    one = differences({"a": {"config": {"seed": None}}, "b": {"config": {}}}, {"a": None, "b": None})[0]
    assert one.to_json() == {"key": "config.seed", "values": {"a": None}, "absent": ["b"]}


def test_a_whole_section_is_told_entry_by_entry_and_what_is_in_it_as_one() -> None:
    assert found({"config": {"a": 1, "b": {"c": 2}}}, {}) == {"config.a": [1, ABSENT], "config.b": [{"c": 2}, ABSENT]}
    git = {"commit": "1", "changed": False}
    assert found({"environment": {"git": git}}, {"environment": {"git": None}}) == {"environment.git": [git, None]}
    assert found({"config": {}}, {}) == {"config": [{}, ABSENT]}


def test_optimizers_are_compared_group_by_group() -> None:
    def manifest(*rates: float) -> dict[str, Any]:
        return {"optimizers": [{"class": "SGD", "groups": [{"lr": rate, "betas": [0.9, 0.99]} for rate in rates]}]}

    assert found(manifest(0.1, 0.2), manifest(0.1, 0.3)) == {"optimizers.0.groups.1.lr": [0.2, 0.3]}
    lone = {"lr": 0.2, "betas": [0.9, 0.99]}
    assert found(manifest(0.1, 0.2), manifest(0.1)) == {"optimizers.0.groups.1": [lone, ABSENT]}


@pytest.mark.parametrize(
    ("left", "right", "differs"),
    [(1, 1.0, False), (1, True, True), (0, False, True), ("1", 1, True), ([1, 2], [1.0, 2.0], False),
     ([1, 2], [2, 1], True), (0.1, 0.1, False), (0.1, 0.1 + 2**-55, True), (2**53 + 1, 2**53, True), ("é", "e", True)],
)  # fmt: skip
def test_what_is_equal(left: Any, right: Any, differs: bool) -> None:
    assert bool(found({"config": {"x": left}}, {"config": {"x": right}})) == differs


def test_what_no_two_runs_have_alike_is_left_out() -> None:
    def manifest(n: int) -> dict[str, Any]:
        cost = {"budget": 0.02, "seconds": n, "wall_seconds": n}
        return {
            "created": n, "status": f"interrupted {n}", "id": f"id-{n}", "config": {"pid": n, "timestamp": n},
            "probes": {"WeightDelta": {"run": f"id-{n}"}},
            "attempts": [{"attempt": 0, "start_step": n, "started": n, "ended": n, "cost": cost}],
        }  # fmt: skip

    assert found(manifest(1), manifest(2)) == {}
    tight = manifest(1)
    tight["attempts"][0]["cost"]["budget"] = 0.01
    assert found(manifest(1), tight) == {"budget": [0.02, 0.01]}


def test_paths_of_the_run_itself_are_left_out() -> None:
    def manifest(name: str) -> dict[str, Any]:
        command = ["train.py", f"--out=runs/{name}", f"/data/runs/{name}/x.pt"]
        return {"environment": {"command": command}, "config": {"output_dir": name, "optimizer": "adam"}}

    folders = ("/data/runs/adam", "/data/runs/sgd")
    assert found(manifest("adam"), manifest("sgd"), folders=folders) == {}
    other = manifest("sgd") | {"config": {"output_dir": "sgd", "optimizer": "sgd"}}
    assert found(manifest("adam"), other, folders=folders) == {"config.optimizer": ["adam", "sgd"]}


def test_the_order_is_the_readers() -> None:
    left = {"environment": {"torch": "1"}, "probes": {"Loss": {"every": 1}}, "schema": 1, "config": {"seed": 1}}
    right = {"environment": {"torch": "2"}, "probes": {"Loss": {"every": 2}}, "schema": 2, "config": {"seed": 2}}
    assert list(found(left, right)) == ["config.seed", "probes.Loss.every", "schema", "environment.torch"]
