"""Which layer moved first and which group was learned first: curves whose crossings are known, and real runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import learnscope as ls
from findings.examples.spurious_digits import Digits, spurious_digits, train_digits
from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.findings.examples.first_moved import by_features
from learnscope.reading.gather import Grid
from learnscope.reading.ordering import half_way
from learnscope.record import Column, Finding, Table

Curve = Callable[[int], float | None]
EVERY = 10


def rise(start: float, end: float, low: float, high: float) -> Curve:
    return lambda k: float(np.interp(k, [start, end], [low, high]))


def features(curves: Mapping[str, Curve], measurements: int = 20) -> MadeRun:
    """1 − CKA by layer; the first measurement has none, as the probe records it."""
    run = MadeRun(layers=list(curves))
    for k in range(measurements):
        moved = [curve(k) for curve in curves.values()]
        values = [None if k == 0 or m is None else 1 - m for m in moved]
        status = dict.fromkeys(range(len(values)), "the first measurement") if k == 0 else {}
        run.write("FeatureEvolution", (k + 1) * EVERY, [
            Table("layer", list(curves), [Column("cka_first", values, status=status)])
        ], phase="epoch")  # fmt: skip
    return run


def groups(curves: Mapping[str, Curve], measurements: int = 20, n: int | None = 100, by: str | None = "class",
           probe: str = "GroupAccuracy", counted: str = "examples") -> MadeRun:  # fmt: skip
    run = MadeRun()
    for k in range(1, measurements + 1):
        labels = {} if by is None else {"by": by}
        columns = [Column("accuracy", [curve(k) for curve in curves.values()], labels)]
        columns += [] if n is None else [Column(counted, [n] * len(curves), labels)]
        run.write(probe, k * EVERY, [Table("group", list(curves), columns)], phase="epoch")
    return run


def layers_of(run: MadeRun, cuts: Cuts | None = None) -> list[Finding]:
    return [finding for finding in find(run.reader, cuts) if finding.kind == "first_moved_layer"]


def groups_of(run: MadeRun, cuts: Cuts | None = None) -> list[Finding]:
    return [finding for finding in find(run.reader, cuts) if finding.kind == "first_moved_group"]


def naive_half_way(values: list[float], start: float, lasting: int) -> int | None:
    end = sum(values[-lasting:]) / len(values[-lasting:])
    for place in range(len(values) - lasting + 1):
        window = values[place : place + lasting]
        if end > start and all(v >= (start + end) / 2 for v in window):
            return place
        if end < start and all(v <= (start + end) / 2 for v in window):
            return place
    return None


def test_half_way_against_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    answers = set()
    for _ in range(300):
        values = np.cumsum(random.normal(random.normal(0, 0.3), 1, int(random.integers(1, 30))))
        start, lasting = float(random.choice([0.0, values[0]])), int(random.integers(1, 5))
        found = half_way(values, start, lasting)
        assert found == naive_half_way(values.tolist(), start, lasting)
        answers.add(found)
    assert None in answers
    assert len(answers) > 10
    assert half_way(np.array([]), 0.0, 3) is None
    assert half_way(np.full(9, 0.5), 0.5, 3) is None


def test_layers_in_their_order() -> None:
    # half of the way at k = 3, 8 and 8; k is step 10(k + 1)
    run = features({"conv": rise(6, 10, 0, 0.4), "mid": rise(7, 9, 0, 0.2), "head": rise(2, 4, 0, 0.8)})
    [found] = layers_of(run)
    assert found.severity == "info"
    assert found.title == "Layer head moved first, at step 40; conv and mid last, at step 90"
    assert "layer head at step 40, layers conv and mid at step 90 (a tie)" in found.detail
    assert list(found.scopes) == ["head", "conv", "mid"]
    assert (found.evidence.first_step, found.evidence.last_step, found.evidence.value) == (40, 90, 50)
    assert found.evidence.probe == "FeatureEvolution"
    assert "layers conv and mid should learn sooner" in found.advice


def test_the_one_that_is_last_is_named_where_many_tie_as_the_first() -> None:
    early, late = rise(1, 3, 0, 0.5), rise(9, 11, 0, 0.5)
    [found] = layers_of(features({"a": early, "b": early, "c": late}))
    assert found.title == "Layer c moved last, at step 110; 2 of 3 layers at step 30"


@pytest.mark.parametrize(
    "curves",
    [
        {"a": rise(2, 4, 0, 0.5), "b": rise(3, 5, 0, 0.5)},  # one interval apart
        {"a": rise(2, 4, 0, 0.5), "b": rise(8, 12, 0, 0.03)},  # one hardly moves
        {"a": rise(2, 4, 0, 0.5)},  # one alone
        {"a": rise(2, 4, 0, 0.5), "b": lambda k: 0.5 if k in (9, 10) else 0.0},  # not lasting
        {"a": rise(2, 4, 0, 0.5), "b": lambda k: None if k == 15 else rise(8, 12, 0, 0.5)(k)},  # not measured once
        {},
    ],
)
def test_layers_without_an_order(curves: dict[str, Curve]) -> None:
    assert layers_of(features(curves)) == []


def test_few_measurements_say_nothing() -> None:
    curves = {"a": rise(0, 1, 0, 0.5), "b": rise(2, 4, 0, 0.5)}
    assert layers_of(features(curves, 5)) == []
    assert len(layers_of(features(curves, 8))) == 1
    assert layers_of(features(curves, 8), Cuts(order_measurements=9)) == []


def test_one_interval_is_no_order_however_few_there_are() -> None:
    """Of 8 measurements one interval is a seventh of the run."""
    assert layers_of(features({"a": rise(1, 3, 0, 0.5), "b": rise(2, 4, 0, 0.5)}, 8)) == []
    assert len(layers_of(features({"a": rise(1, 3, 0, 0.5), "b": rise(3, 5, 0, 0.5)}, 8))) == 1


def test_a_first_record_that_is_not_the_first_measurement_counts_as_it_is() -> None:
    """As where the run begins with records of a session that went on from a checkpoint."""
    steps = np.arange(10, 90, 10)
    distances = np.array(
        [[0.4, 0.0], [0.4, 0.1], [0.5, 0.1], [0.5, 0.1], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    )
    found = by_features(Grid(steps, ["a", "b"], 1 - distances, np.zeros(distances.shape, dtype=bool)), Cuts())
    assert found.places == {"a": 0, "b": 4}


def test_of_many_measurements_a_few_are_no_order() -> None:
    curves = {"a": rise(10, 20, 0, 0.5), "b": rise(14, 24, 0, 0.5)}
    assert layers_of(features(curves, 100)) == []  # 4 of 99 intervals
    [found] = layers_of(features(curves, 100), Cuts(order_spread=0.03))
    assert found.evidence.value == 40


def updates(ratios: Mapping[str, Callable[[int], float]], run: MadeRun | None = None) -> MadeRun:
    run = run or MadeRun(layers=list(ratios))
    for k in range(1, 21):
        run.change(
            (k * EVERY - EVERY, k * EVERY), {"w": 1.0}, layers={name: ratio(k) for name, ratio in ratios.items()}
        )
    return run


def test_layers_by_their_updates() -> None:
    early: Callable[[int], float] = lambda k: 1.0 if k <= 4 else 0.0  # noqa: E731
    [found] = layers_of(updates({"a": early, "b": lambda k: 0.1, "c": lambda k: 0.0}))
    # a: 4 in all, 2 after k = 2; b: 20 measurements alike, half after k = 10
    assert found.title == "Layer a moved first, at step 20; b last, at step 100"
    assert "Not in this order: c (did not move)." in found.detail
    assert found.evidence.probe == "ParameterChange"
    assert layers_of(updates({"a": lambda k: 0.1, "b": lambda k: 0.2})) == []


def test_both_ways_to_tell_are_one_finding() -> None:
    run = features({"a": rise(2, 4, 0, 0.5), "b": rise(10, 12, 0, 0.5)})
    [found] = layers_of(updates({"a": lambda k: 1.0 if k <= 4 else 0.0, "b": lambda k: 0.1}, run))
    assert "(1 − CKA) was made by layer a" in found.detail
    assert "(the sum of ‖Δ‖/‖W‖) was made by layer a" in found.detail
    run = features({"a": rise(2, 4, 0, 0.5), "b": rise(10, 12, 0, 0.5)})
    [found] = layers_of(updates({"a": lambda k: 0.1, "b": lambda k: 0.1}, run))
    assert "By ParameterChange there is no order" in found.detail


def test_groups_in_their_order() -> None:
    curves = {"cat": rise(2, 4, 0.1, 0.9), "dog": rise(10, 12, 0.1, 0.7), "10": rise(2, 4, 0.1, 0.5)}
    [found] = groups_of(groups(curves))
    assert found.severity == "info"
    assert found.title == "Class dog was learned last, at step 110; 2 of 3 classes at step 30"
    assert "classes cat and 10 at step 30 (a tie), class dog at step 110" in found.detail
    assert "accuracy on class dog was 10 %" in found.detail
    assert "Stopped before step 110, the run would not be half way on class dog" in found.advice
    assert found.evidence.n == 20


@pytest.mark.parametrize("probe", ["GroupAccuracy", "GroupAccuracy_2", "ExampleLedger"])
def test_groups_of_any_probe_that_records_them(probe: str) -> None:
    curves = {"a": rise(2, 4, 0.1, 0.9), "b": rise(10, 12, 0.1, 0.7)}
    [found] = groups_of(groups(curves, n=None, by=None, probe=probe))
    assert found.title == "Group a was learned first, at step 30; b last, at step 110"
    assert found.evidence.probe == probe


def test_presentations_count_as_examples() -> None:
    curves = {"a": rise(2, 4, 0.1, 0.9), "b": rise(10, 12, 0.1, 0.7)}
    for n, found in ((100, 1), (10, 0)):
        run = groups(curves, n=n, probe="ExampleLedger", counted="group_presentations")
        assert len(groups_of(run)) == found


def test_test_data_come_before_training_data() -> None:
    run = groups({"a": rise(2, 4, 0.1, 0.9), "b": rise(10, 12, 0.1, 0.7)}, probe="ExampleLedger")
    for record in groups({"a": rise(10, 12, 0.1, 0.9), "b": rise(2, 4, 0.1, 0.7)}).reader.records():
        run.write(record.probe, record.step, record.tables, phase="epoch")
    [found] = groups_of(run)
    assert found.title.startswith("Class b was learned first")


def test_groups_that_are_past_half_from_the_first_measurement_are_never_called_the_first() -> None:
    """From a start of its own, `known` would be half way only at k = 14."""
    known, late, later = rise(12, 16, 0.8, 0.95), rise(6, 10, 0.05, 0.9), rise(14, 18, 0.05, 0.9)
    assert groups_of(groups({"known": known, "late": late})) == []
    [found] = groups_of(groups({"known": known, "fair": known, "late": late}))
    assert found.title == "Class late was learned last, at step 80; 2 of 3 classes at step 10 or before"
    assert "classes known and fair at step 10 or before (a tie), class late at step 80" in found.detail
    [found] = groups_of(groups({"known": known, "late": late, "later": later}))
    assert found.title == "Class later was learned last, at step 160; 1 of 3 classes at step 80"
    assert "Not in this order: known (past half of its way at the first measurement already" in found.detail


def test_groups_without_an_order() -> None:
    early, late = rise(2, 4, 0.1, 0.9), rise(10, 12, 0.1, 0.9)
    assert len(groups_of(groups({"a": early, "b": late}))) == 1
    assert groups_of(groups({"a": early, "b": late}, n=10)) == []  # too few examples
    assert groups_of(groups({"a": early, "b": rise(3, 5, 0.1, 0.9)})) == []  # one interval apart
    assert groups_of(groups({"a": early, "b": lambda k: 0.15})) == []  # one is not learned
    assert groups_of(groups({"a": early, "b": late}, 5)) == []
    assert groups_of(groups({"a": lambda k: None, "b": late})) == []
    # at k = 3 it is below half of its way by less than 20 examples can tell
    wavering = groups({"a": early, "b": lambda k: 0.1 if k == 1 else 0.42 if k < 10 else 0.9}, n=20)
    assert groups_of(wavering) == []


def test_a_rare_class_is_learned_last() -> None:
    data = spurious_digits(0, 0.0)
    x, y = data.train[:2]
    kept = (y != 8) | (torch.arange(len(y)) % 16 == 0)
    assert 3 <= int((kept & (y == 8)).sum()) <= 15
    for seed in range(2):
        rare = Digits((x[kept], y[kept]), data.test[:2])  # type: ignore[arg-type]
        run = train_digits(rare, [ls.GroupAccuracy()], seed=seed, epochs=40)
        [found] = [f for f in run.findings() if f.kind == "first_moved_group"]
        assert found.scopes[-1] == "8"
        assert "8 last, at step" in found.title or found.title.startswith("Class 8 was learned last")
        steps = run.frame("GroupAccuracy", "accuracy", "group")
        eights = steps[steps["scope"] == "8"].sort_values("step")
        assert found.evidence.last_step in eights["step"].tolist()


def test_a_layer_that_is_thawed_later_moves_last() -> None:
    data = spurious_digits(0, 0.0)
    x, y = data.train[:2]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2:].parameters()}], lr=0.05, momentum=0.9
    )
    probes = [ls.FeatureEvolution(layers=["0", "2"], samples=100), ls.ParameterChange(every=21)]
    with ls.watch(model, optimizer, probes=probes, holdout=[data.test], strict=True) as w:
        for epoch in range(16):
            if epoch == 8:
                optimizer.param_groups[0]["lr"] = 0.05
            for chosen in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimizer.step()
            w.end_epoch()
    [found] = [f for f in w.run.findings() if f.kind == "first_moved_layer"]
    assert found.scopes[-1] == "0"
    assert found.evidence.probe == "FeatureEvolution"
    assert found.evidence.last_step > 8 * 21 >= found.evidence.first_step  # type: ignore[operator]
    assert "By ParameterChange" not in found.detail  # it tells the same
