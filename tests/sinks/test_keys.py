"""Names of numbers in trackers, and how few a deep model makes."""

from __future__ import annotations

import re
from statistics import median
from typing import Any

import pytest

import learnscope as ls
from learnscope.quantities import declared
from learnscope.sinks.keys import Keys, families, key_of
from learnscope.sinks.selection import MOST, TOP, Number, Selection, quantity_of
from sinks.made import one, record, table, train

LAYERS = [f"layers.{i}" for i in range(48)]


@pytest.fixture(scope="module")
def deep() -> list[ls.Record]:
    """Default probes, and all that is recorded of 48 layers with them."""
    probes = [*ls.default_probes(), ls.Momentum(every=5), ls.WeightKurtosis(every=5)]
    return list(train(20, layers=48, probes=probes).run.records())


def keys_of(records: list[ls.Record], **options: Any) -> list[set[str]]:
    keys = Keys(Selection(**options))
    return [set(keys.values(record)) for record in records]


def test_a_model_of_48_layers_makes_few_keys_and_an_option_gives_all(deep: list[ls.Record]) -> None:
    few, all_of_them = set().union(*keys_of(deep)), set().union(*keys_of(deep, everything=True))
    by_default = [each for each in deep if each.probe not in ("Momentum", "WeightKurtosis")]
    assert 100 < len(set().union(*keys_of(by_default))) <= 200
    assert len(few) <= MOST + 50
    assert len(all_of_them) > 1000
    tensors = set().union(*keys_of(deep, everything=True, kinds=("model", "layer", "tensor")))
    assert len(tensors) > 3700
    expected = {"gradients/norm", "gradients/norm/stage-before_clip", "outputs/loss", "updates/update_to_weight"}
    expected |= {f"gradients/norm/layers-{summary}" for summary in ("min", "median", "max")}
    assert expected <= few
    of_layers = [key for key in few if key.startswith("gradients/norm/layer/")]
    assert TOP <= len(of_layers) <= 2 * TOP


def test_every_number_is_the_recorded_one(deep: list[ls.Record]) -> None:
    keys = Keys()
    seen = 0
    for each in deep:
        values = keys.values(each)
        for kept in each.tables:
            for column in kept.columns:
                labels = "".join(
                    f"/{k}-{column.labels[k]}"
                    for k in sorted(column.labels)
                    if (k, column.labels[k]) != ("stage", "stepped")
                )
                probe = each.probe if each.probe == "LostSteps" and column.name != "lost_steps" else None
                base = f"{families()[each.probe]}/{f'{probe}/' if probe else ''}{column.name}{labels}"
                if kept.kind == "model" and column.values[0] is not None and base in values:
                    assert values[base] == column.values[0]
                    seen += 1
                if kept.kind == "layer" and f"{base}/layers-max" in values:
                    measured = [value for value in column.values if value is not None]
                    assert values[f"{base}/layers-max"] == max(measured)
                    assert values[f"{base}/layers-min"] == min(measured)
                    assert values[f"{base}/layers-median"] == median(measured)
                    seen += 1
    assert seen > 100


def test_charts_have_no_gaps(deep: list[ls.Record]) -> None:
    """What is written once of a quantity is written at each of its records."""
    keys = Keys()
    gradients = [set(keys.values(each)) for each in deep if each.probe == "GradientFlow"]
    first = {key for key in gradients[0] if "gradient_to_weight" not in key}  # which is not measured each time
    assert len(gradients) > 1
    assert all(first <= each for each in gradients)


def test_the_largest_layers_are_chosen_and_later_leaders_come_on_top() -> None:
    keys = Keys()
    rising = record(1, table("layer", LAYERS, "x", [float(i) for i in range(48)]))
    assert {key for key in keys.values(rising) if "/layer/" in key} == {f"P/x/layer/layers.{i}" for i in (45, 46, 47)}
    for leader in (7, 7, 8, 9, 10, 11):
        values = [float(i) for i in range(48)]
        values[leader] = 100.0 + leader
        found = keys.values(record(2, table("layer", LAYERS, "x", values)))
    chosen = {int(key.rpartition(".")[2]) for key in found if "/layer/" in key}
    assert chosen == {45, 46, 47, 7, 8, 9}, "twice as many at most"
    assert found["P/x/layers-max"] == 111.0


def test_four_layers_are_written_one_by_one_and_groups_as_layers_are() -> None:
    keys = Keys()
    assert set(keys.values(record(1, table("layer", LAYERS[:4], "x", [1.0] * 4)))) == {
        f"P/x/layer/layers.{i}" for i in range(4)
    }
    many = keys.values(record(1, table("group", [f"g{i}" for i in range(9)], "x", [1.0] * 9)))
    assert len(many) == 3 + TOP
    assert "P/x/groups-median" in many


def test_names() -> None:
    def key(probe: str, name: str, kind: str = "model", scope: str = "model", **labels: Any) -> str:
        return key_of(Number(probe, name, kind, scope, labels, 1.0))

    assert key("GradientFlow", "norm", stage="stepped") == "gradients/norm"
    assert key("LostSteps", "norm") == "gradients/LostSteps/norm"
    assert key("ParameterChange_2", "sparsity", threshold=1e-6, dtype="bfloat16") == (
        "updates-2/sparsity/dtype-bfloat16/threshold-1e-06"
    )
    assert key("Mine", "größe", "layer", "a b=c") == "Mine/gr__e/layer/a_b_c"
    assert key("Loss", "loss_D") == "outputs/loss_D"


def test_declared_names_have_keys_of_their_own() -> None:
    seen: dict[str, tuple[str, str]] = {}
    for probe, quantities in declared().items():
        for quantity in quantities.all():
            key = key_of(Number(probe, quantity.name, "model", "model", {}, 1.0))
            assert re.fullmatch(r"[\w./-]+", key, re.ASCII)
            assert seen.setdefault(key, (probe, quantity.name)) == (probe, quantity.name)
    assert len(seen) > 300


def test_texts_that_become_the_same_stay_two_keys() -> None:
    keys = Keys()
    values = keys.values(record(1, table("layer", ["a b", "a_b", "x" * 400, "x" * 401], "n", [1.0, 2.0, 3.0, 4.0])))
    assert sorted(values.values()) == [1.0, 2.0, 3.0, 4.0]
    assert values["P/n/layer/a_b"] == 1.0
    assert values["P/n/layer/a_b-2"] == 2.0
    assert max(map(len, values)) <= 250


def test_what_was_not_measured_is_absent() -> None:
    keys = Keys()
    holes = [float("nan"), None, 3.0, 1.0, float("inf")]
    found = keys.values(record(1, one("x", None), one("y", float("nan")), table("layer", list("abcde"), "z", holes)))
    assert found == {
        "P/z/layers-min": 1.0, "P/z/layers-median": 2.0, "P/z/layers-max": 3.0, "P/z/layer/c": 3.0, "P/z/layer/d": 1.0
    }  # fmt: skip
    assert keys.values(record(2, table("layer", list("abcde"), "z", [None] * 5))) == {}


def test_records_of_a_step_are_one_row() -> None:
    keys = Keys(prefix="learnscope")
    records = [
        record(1, one("x", 1.0)),
        record(1, one("y", 2.0)),
        record(2),
        record(1, one("x", 3.0)),
        record(3, one("x", 4.0)),
    ]
    assert [(step, values) for step, _, values in keys.steps(records)] == [
        (1, {"learnscope/P/x": 1.0, "learnscope/P/y": 2.0}),
        (1, {"learnscope/P/x": 3.0}),
        (3, {"learnscope/P/x": 4.0}),
    ]


def test_when_there_are_many_keys_layers_get_no_more_and_the_model_does() -> None:
    keys = Keys()
    for number in range(100):
        keys.values(record(1, table("layer", LAYERS[:3], f"x{number}", [1.0] * 3)))
    assert keys.values(record(1, table("layer", LAYERS[:3], "late", [1.0] * 3))) == {}
    assert keys.values(record(1, one("late", 1.0))) == {"P/late": 1.0}
    assert quantity_of("GradientFlow_2", "norm") is not None
