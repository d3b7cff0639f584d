"""Records to a history, and that to plain tensors and back: by hand, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from learnscope.record import Column, Record, Table
from learnscope.trackers.history import NOT_RECORDED, History, plain_name
from learnscope.trackers.tracker_file import packed, unpacked

LORA = {"adapter": "dé/fault", "family": "lora"}


def record(step: int, *tables: Table, probe: str = "P", **options: Any) -> Record:
    return Record(probe=probe, step=step, phase="x", source="x", time=0.0, cost=0.5, tables=tables, **options)


def history(records: list[Record], arrays: Mapping[int, Mapping[str, Any]] | None = None) -> History:
    made = History()
    for one in records:
        made.take(one, (arrays or {}).get(one.step, {}), plain_name)
    return made


def views(made: History) -> list[History]:
    """As made, and as a file brings it back."""
    return [made, unpacked(packed(made))]


def test_a_module_that_comes_later_is_missing_before() -> None:
    first = Table("module", ["a.β"], [Column("size", [1.5], LORA), Column("rank", [4], LORA)])
    second = Table(
        "module", ["b", "a.β"], [Column("size", [2.5, 3.5], LORA), Column("rank", [None, 5], LORA, {0: "flat"})]
    )
    for view in views(history([record(10, first), record(20, second)])):
        later = view.of_module("dé/fault", "b", ["size", "rank"])
        assert later["size"] == [None, 2.5]
        assert later["rank"] == [None, None]
        assert later["reasons"] == {"size": {10: NOT_RECORDED}, "rank": {10: NOT_RECORDED, 20: "flat"}}
        early = view.of_module("dé/fault", "a.β", ["size", "rank"])
        assert (early["size"], early["rank"], early["reasons"]) == ([1.5, 3.5], [4, 5], {})
        assert [type(value) for value in early["rank"]] == [int, int]
        assert [view.cost(step) for step in view.steps] == [0.5, 0.5]


def test_labels_tell_metrics_of_one_name_apart() -> None:
    columns = [
        Column("drift", [value], {**LORA, "since": since}) for since, value in (("first", 1.0), ("previous", 2.0))
    ]
    for view in views(history([record(1, Table("module", ["m"], columns), Table("model", ["model"], columns[:1]))])):
        found = view.of_module("dé/fault", "m", view.metrics("dé/fault", "m"))
        assert found == {"steps": [1], "drift/first": [1.0], "drift/previous": [2.0], "reasons": {}}


def test_lists_belong_to_their_adapter_and_module() -> None:
    table = Table("module", ["m", "n"], [Column("largest_sv", [3.0, None], LORA, {1: "it has none"})])
    weights = Table("tensor", ["m", "w"], [Column("largest_sv", [7.0, 8.0])])
    arrays = {
        1: {"singular_values/dé/fault/m": np.array([3.0, 1.0]), "singular_values/w": np.array([8.0]),
            "singular_values/m": np.array([np.inf, 1.0])},
    }  # fmt: skip
    for view in views(history([record(1, table, weights)], arrays)):
        own = [view.of_module("dé/fault", module, ["singular_values"]) for module in ("m", "n")]
        assert [one["singular_values"] for one in own] == [[[3.0, 1.0]], [None]]
        assert own[1]["reasons"] == {"singular_values": {1: "it has none"}}
        assert view.of_module("none", "w", ["singular_values"])["singular_values"] == [[8.0]]
        broken = view.of_module("none", "m", ["singular_values"])
        assert broken["singular_values"] == [None]
        assert "not finite" in broken["reasons"]["singular_values"][1]


def test_lists_of_other_lengths_come_back_as_they_were() -> None:
    table = Table("module", ["m"], [Column("largest_sv", [1.0], LORA)])
    arrays = {step: {"singular_values/dé/fault/m": np.arange(step, 0.0, -1.0)} for step in (1, 4, 2)}
    found = history([record(step, table) for step in arrays], arrays)
    for view in views(found):
        course = view.of_module("dé/fault", "m", ["singular_values"])
        assert course["steps"] == [1, 2, 4]
        assert course["singular_values"] == [[1.0], [2.0, 1.0], [4.0, 3.0, 2.0, 1.0]]


def test_the_later_record_of_a_step_counts_and_two_probes_add_up() -> None:
    def table(value: float, labels: Mapping[str, Any]) -> Table:
        return Table("module", ["m"], [Column("size", [value], labels)])

    records = [record(5, table(1.0, LORA)), record(5, table(9.0, {}), probe="Q"), record(5, table(2.0, LORA))]
    for view in views(history(records)):
        assert view.of_module("dé/fault", "m", ["size"])["size"] == [2.0]
        assert view.of_module("none", "m", ["size"])["size"] == [9.0]
        assert view.cost(5) == 1.0
    with pytest.raises(ValueError, match=r"two probes measured the adapter 'dé/fault' at step 5"):
        history([record(5, table(1.0, LORA)), record(5, table(1.0, LORA), probe="Q")])


def test_a_failure_is_the_reason_for_what_is_missing() -> None:
    table = Table("module", ["m"], [Column("size", [1.0], LORA)])
    found = history([record(1, table), record(2, error="KeyError: 'x'")])
    for view in views(found):
        course = view.of_module("dé/fault", "m", ["size"])
        assert course["size"] == [1.0, None]
        assert course["reasons"] == {"size": {2: "KeyError: 'x'"}}


def test_a_step_that_is_forgotten_leaves_nothing_behind() -> None:
    table = Table("module", ["m"], [Column("largest_sv", [None], LORA, {0: "flat"}), Column("size", [1.0], LORA)])
    found = history([record(1, table), record(2, table)], {2: {"singular_values/dé/fault/m": np.array([np.nan])}})
    found.measured.pop(2)
    for view in views(found):
        assert view.steps == [1]
        assert view.of_module("dé/fault", "m", ["size", "largest_sv"]) == {
            "steps": [1], "size": [1.0], "largest_sv": [None], "reasons": {"largest_sv": {1: "flat"}},
        }  # fmt: skip


def test_no_record_is_no_step() -> None:
    for view in views(History()):
        assert (view.steps, view.families) == ([], {})
