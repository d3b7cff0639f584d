"""Groups of examples: accuracies by hand, and findings that neither chance, a start, nor unlike classes may cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from findings.examples.spurious_digits import spurious_digits
from learnscope.intervals import wilson
from learnscope.report.examples.groups import group_figure
from learnscope.store.reader import RunReader

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Answers(nn.Module):
    """Gives every example the answer that is written down for it: any course of accuracies can be replayed."""

    def __init__(self, examples: int, classes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(examples, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(x)
        return found


def answering(predicted: Ints, classes: int) -> dict[str, Tensor]:
    return {"table.weight": 5.0 * F.one_hot(torch.tensor(predicted), classes).float()}


def batch(y: Ints, groups: Any = None) -> tuple[Any, ...]:
    x = torch.arange(len(y))
    return (x, torch.tensor(y)) if groups is None else (x, torch.tensor(y), x, groups)


def replayed(answers: Mapping[int, Ints], y: Ints, groups: Any = None, *, train: Any = None, classes: int | None = None,
             probe: ls.GroupAccuracy | None = None) -> ls.Run:  # fmt: skip
    c = classes or int(max(y.max(), *(a.max() for a in answers.values()))) + 1
    more = {} if train is None else {"train": [train]}
    return ls.replay(
        {step: answering(given, c) for step, given in answers.items()}, model=Answers(len(y), c),
        probes=[probe or ls.GroupAccuracy()], test=[batch(y, groups)], progress=False, strict=True, **more,
    )  # fmt: skip


def kinds(run: ls.Run) -> list[str]:
    return [finding.kind for finding in run.findings()]


def of(run: ls.Run, kind: str) -> ls.Finding:
    [found] = [finding for finding in run.findings() if finding.kind == kind]
    return found


def wrong(y: Ints, classes: int, random: np.random.Generator) -> Ints:
    return (y + random.integers(1, classes, len(y))) % classes


def course(y: Ints, curves: Mapping[int, Sequence[float]], classes: int, seed: int = 0) -> dict[int, Ints]:
    """Each class is answered right for the first so many of its examples, and otherwise by another class."""
    random = np.random.default_rng(seed)
    found = {}
    for k in range(len(next(iter(curves.values())))):
        answer = wrong(y, classes, random)
        for c, curve in curves.items():
            here = np.flatnonzero(y == c)
            answer[here[: round(curve[k] * len(here))]] = c
        found[k * 10] = answer
    return found


CLASSES = np.repeat(np.arange(5), 40)


def ramp(start: float, end: float, low: float = 0.0, high: float = 0.95, n: int = 20) -> list[float]:
    return [float(v) for v in np.interp(np.arange(n), [start, end], [low, high])]


def test_a_class_that_an_untrained_network_answers_always_was_not_learned_first() -> None:
    """All answers are class 3 at step 0; what the network learns begins only then."""
    early = {0: ramp(3, 5), 1: ramp(3, 5), 2: ramp(3, 5), 3: [1.0, 1.0, 1.0, *[0.95] * 17], 4: ramp(3, 5)}
    answers = course(CLASSES, early, 5)
    answers[0] = np.full(200, 3)
    assert "first_moved_group" not in kinds(replayed(answers, CLASSES))
    late = {**early, 4: ramp(12, 14)}
    answers = course(CLASSES, late, 5)
    answers[0] = np.full(200, 3)
    found = of(replayed(answers, CLASSES), "first_moved_group")
    assert found.title == "Class 4 was learned last, at step 130; 3 of 5 classes at step 40"
    assert (
        "Not in this order: 3 (past half of its way at the first measurement already, be it by chance" in found.detail
    )
    assert found.scopes == ["0", "1", "2", "4"]


def test_a_network_that_begins_with_one_answer_for_all() -> None:
    """Digits, trained from a head that is biased to one class; the first checkpoint is before any step."""
    data = spurious_digits(0, 0.0)
    (x, y), test = data.train[:2], data.test[:2]
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        model[2].bias.data[6] = 3.0  # type: ignore[operator,union-attr]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        kept = {}
        for epoch in range(15):
            kept[epoch] = {name: value.clone() for name, value in model.state_dict().items()}
            for rows in torch.randperm(len(x)).split(128):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        run = ls.replay(kept, model=model, probes=[ls.GroupAccuracy()], test=[test], progress=False)
        first = run.frame("GroupAccuracy", "accuracy", "group").query("step == 0").set_index("scope")["value"]
        assert first["6"] == 1
        assert first.drop("6").max() == 0
        for finding in run.findings():
            if finding.kind == "first_moved_group":
                assert "first" not in finding.title
                assert "6" not in finding.scopes


@pytest.mark.parametrize(("runs", "most"), [(8, 1), pytest.param(30, 2, marks=pytest.mark.soak)])
def test_classes_with_the_same_course_have_no_order_whatever_the_noise(runs: int, most: int) -> None:
    """Forty examples a class, each right by its own coin at every measurement: hardly one run may say a word."""
    said = 0
    for seed in range(runs):
        random = np.random.default_rng(seed)
        y = np.repeat(np.arange(10), 40)
        answers = {}
        for k, share in enumerate(ramp(0, 12, 0.1, 0.9)):
            right = random.random(len(y)) < share
            answers[k] = np.where(right, y, wrong(y, 10, random))
        said += "first_moved_group" in kinds(replayed(answers, y))
    assert said <= most


class Parallel(nn.Module):
    """Every layer sees the inputs, so that none moves because of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(6)), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        last = [layer(x) for layer in self.layers][-1]
        found: Tensor = self.head(last)
        return found


@pytest.mark.parametrize("runs", [3, pytest.param(8, marks=pytest.mark.soak)])
def test_layers_with_the_same_course_have_no_order_whatever_the_noise(runs: int) -> None:
    """All layers turn from one matrix to another at the same pace, with independent noise in each."""
    said = 0
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    model = Parallel()
    for seed in range(runs):
        torch.manual_seed(seed)
        one = torch.linalg.qr(torch.randn(8, 8))[0]
        two = torch.randn(8, 8) * torch.tensor([4, 2, 1, 0.5, 0.25, 0.1, 0.1, 0.1])
        kept = {}
        for k in range(20):
            for layer in model.layers:
                noise = 0.25 * torch.randn(8, 8) if k else 0.0
                layer.weight.data = one + k / 20 * (two - one) + noise  # type: ignore[union-attr]
            kept[k] = {name: value.clone() for name, value in model.state_dict().items()}
        probe = ls.FeatureEvolution(layers=[f"layers.{i}" for i in range(6)])
        run = ls.replay(kept, model=model, probes=[probe], holdout=[x], progress=False, strict=True)
        far = 1 - run.frame("FeatureEvolution", "cka_first", "layer").query("step == 19")["value"]
        assert (far > 0.1).all()
        said += "first_moved_layer" in kinds(run)
    assert said <= 1


def test_a_clear_order_is_still_found() -> None:
    curves = {0: ramp(2, 4), 1: ramp(2, 4), 2: ramp(6, 8), 3: ramp(6, 8), 4: ramp(13, 15)}
    found = of(replayed(course(CLASSES, curves, 5), CLASSES), "first_moved_group")
    assert found.title.startswith("Class 4 was learned last, at step 140")
    assert found.scopes[-1] == "4"
    assert found.evidence.last_step == 140


def by_hand(y: Ints, answer: Ints, groups: Sequence[str]) -> dict[str, dict[str, float]]:
    logits = 5.0 * np.eye(int(max(y.max(), answer.max())) + 1)[answer]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gold = p[np.arange(len(y)), y]
    found = {}
    for group in dict.fromkeys(groups):
        here = np.array([g == group for g in groups])
        found[group] = {
            "accuracy": float((answer == y)[here].mean()), "gold_probability": float(gold[here].mean()),
            "loss": float(-np.log(gold[here]).mean()), "examples": int(here.sum()), "positions": int(here.sum()),
        }  # fmt: skip
    return found


def table(run: ls.Run, kind: str = "group") -> dict[str, dict[str, float]]:
    frame = run.frame("GroupAccuracy", kind=kind)
    return {str(scope): dict(zip(rows["name"], rows["value"], strict=True)) for scope, rows in frame.groupby("scope")}


@pytest.mark.parametrize("names", [["land", "water"], ["a", "b", "c d", "é"], ["only"], ["10", "9", "x"]])
def test_named_groups_by_hand(names: list[str]) -> None:
    random = np.random.default_rng(1)
    y, answer = random.integers(0, 3, 157), random.integers(0, 3, 157)
    groups = [names[i] for i in random.integers(0, len(names), 157)]
    run = replayed({0: answer}, y, groups)
    expected = by_hand(y, answer, groups)
    found = table(run)
    assert found.keys() == expected.keys()
    for group, numbers in expected.items():
        assert found[group] == pytest.approx(numbers, rel=1e-5)
    cells = run.frame("GroupAccuracy", "accuracy", "cell")
    for group, target, value in zip(cells["scope"], cells["target"], cells["value"], strict=True):
        here = (np.array(groups) == group) & (y == target)
        assert value == pytest.approx((answer[here] == y[here]).mean())


def test_a_thousand_groups_are_the_largest_ones_and_the_rest_is_counted() -> None:
    random = np.random.default_rng(0)
    sizes = np.r_[np.full(64, 9), np.full(936, 2)]
    order = random.permutation(1000)
    groups = torch.tensor(np.repeat(order, sizes))
    y = random.integers(0, 2, len(groups))
    answer = random.integers(0, 2, len(groups))
    run = replayed({0: answer}, y, groups)
    found = table(run)
    assert found.keys() == {str(name) for name in order[:64]}
    expected = by_hand(y, answer, [str(g) for g in groups.tolist()])
    assert all(found[g]["accuracy"] == pytest.approx(expected[g]["accuracy"]) for g in found)
    [record] = list(run.records())
    assert record.notes["left_out"] == 936
    assert "the largest 64 of 1,000 groups" in written(run)
    whole = table(replayed({0: answer}, y, groups, probe=ls.GroupAccuracy(max_groups=1000, max_cells=2000)))
    assert {g: numbers["accuracy"] for g, numbers in whole.items()} == pytest.approx(
        {g: numbers["accuracy"] for g, numbers in expected.items()}
    )


def written(run: ls.Run) -> str:
    """What stands on the figure of groups."""
    figure = group_figure(RunReader(run.backend))
    assert figure is not None
    return " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())  # type: ignore[attr-defined]


def test_one_group_is_named_once_and_a_long_name_is_cut() -> None:
    y = np.arange(20) % 2
    name = "a group with a name that goes on and on " * 5
    said = written(replayed({0: y}, y, [name] * 20))
    assert said.count("100 %") == 1
    assert name not in said
    assert "a group with a name that" in said


def test_groups_in_some_batches_only_and_targets_without_classes() -> None:
    y = np.arange(20) % 2
    model = Answers(20, 2)
    some = [batch(y[:10], torch.arange(10)), batch(y[10:])]
    with pytest.raises(ValueError, match="1 came without groups and the others with: name all"):
        ls.replay(
            {0: model.state_dict()}, model=model, probes=[ls.GroupAccuracy()], test=some, progress=False, strict=True
        )
    torch.manual_seed(0)
    line: Any = nn.Linear(3, 1)
    x, t, groups = torch.randn(30, 3), torch.randn(30, 1), ["old"] * 12 + ["young"] * 18
    data = (x, t, torch.arange(30), groups)
    run = ls.replay({0: line.state_dict()}, model=line, probes=[ls.GroupAccuracy()], test=[data], progress=False)
    squares = ((line(x) - t) ** 2).detach().numpy()[:, 0]
    found = run.frame("GroupAccuracy", "loss", "group").set_index("scope")["value"]
    assert found["old"] == pytest.approx(squares[:12].mean(), rel=1e-5)
    assert found["young"] == pytest.approx(squares[12:].mean(), rel=1e-5)
    accuracy = run.frame("GroupAccuracy", "accuracy", "group")
    assert accuracy["value"].isna().all()
    assert all("float targets" in why for why in accuracy["status"])
    assert kinds(run) == []


def tied(y: Ints, share: float, classes: int, seed: int = 0) -> Ints:
    """An attribute that is the class for a share of the examples, and any for the others."""
    random = np.random.default_rng(seed)
    return np.where(random.random(len(y)) < share, y, random.integers(0, classes, len(y)))


def test_the_gap_and_its_intervals_by_hand() -> None:
    random = np.random.default_rng(3)
    y = random.integers(0, 4, 400)
    attribute = tied(y, 0.4, 4, 1)
    answer = np.where(random.random(400) < 0.6, attribute, y)
    trained_on = random.integers(0, 4, 300)
    train = batch(trained_on, torch.tensor(tied(trained_on, 0.9, 4, 2)))
    run = replayed({0: answer}, y, torch.tensor(attribute), train=train)
    found = run.frame("GroupAccuracy", kind="model").set_index("name")["value"]
    aligned = attribute == y
    right = answer == y
    p, n = right[aligned].mean(), int(aligned.sum())
    q, m = right[~aligned].mean(), int((~aligned).sum())
    (low, high), (lower, upper) = (
        stats.binomtest(round(share * size), size).proportion_ci(method="wilson") for share, size in ((p, n), (q, m))
    )
    newcombe = p - q - np.hypot(p - low, upper - q), p - q + np.hypot(high - p, q - lower)
    assert found["bias_gap"] == pytest.approx(p - q)
    assert (found["bias_gap_low"], found["bias_gap_high"]) == pytest.approx(newcombe)
    assert found["attribute_following"] == pytest.approx((answer[~aligned] == attribute[~aligned]).mean())
    assert found["chance_following"] == pytest.approx((1 - q) / 3)
    weights, gaps = [], []
    for c in range(4):
        a, b = right[aligned & (y == c)], right[~aligned & (y == c)]
        weights.append(len(a) * len(b) / (len(a) + len(b)))
        gaps.append(a.mean() - b.mean())
    assert found["within_class_gap"] == pytest.approx(np.average(gaps, weights=weights))
    counts = np.histogram2d(train[3].numpy(), trained_on, bins=(np.arange(5), np.arange(5)))[0]
    assert found["association"] == pytest.approx(stats.contingency.association(counts.astype(int), method="cramer"))
    assert "spurious_attribute" in kinds(run)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 10), marks=pytest.mark.soak)])
@pytest.mark.parametrize("classes", [2, 10])
def test_no_attribute_is_blamed_on_a_model_that_does_not_follow_it(classes: int, seeds: range) -> None:
    """Errors at random, hard classes, rare classes, classes tied to groups in the training data: all innocent."""
    for seed in seeds:
        random = np.random.default_rng(seed)
        rare = random.choice(classes, 800, p=np.r_[np.full(classes - 1, 0.1 / (classes - 1)), 0.9])
        even = random.integers(0, classes, 800)
        hard = np.where(np.arange(classes) == 0, 0.3, 0.95)
        cases: dict[str, tuple[Ints, Floats]] = {
            "errors at random": (even, np.full(800, 0.7)), "well trained": (even, np.full(800, 0.99)),
            "imbalanced": (rare, np.full(800, 0.9)), "one hard class": (even, hard[even]),
            "majority only": (rare, (rare == classes - 1) * 1.0),
        }  # fmt: skip
        for name, (y, chance) in cases.items():
            answer = np.where(random.random(800) < chance, y, wrong(y, classes, random))
            attribute = torch.tensor(tied(y, 0.5, classes, seed))
            train = batch(y, torch.tensor(tied(y, 0.95, classes, seed + 50)))
            found = kinds(replayed({0: answer, 1: answer, 2: answer}, y, attribute, train=train, classes=classes))
            assert "spurious_attribute" not in found, (name, seed)


def test_a_model_that_follows_the_attribute_is_named() -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 10, 600)
    attribute = random.integers(0, 10, 600)
    train = batch(y, torch.tensor(tied(y, 0.95, 10)))
    answer = np.where(random.random(600) < 0.9, attribute, y)
    found = of(
        replayed({0: answer, 1: answer, 2: answer}, y, torch.tensor(attribute), train=train), "spurious_attribute"
    )
    assert found.severity == "critical"
    assert found.evidence.value == pytest.approx(
        (answer == y)[attribute == y].mean() - (answer == y)[attribute != y].mean()
    )


@pytest.mark.parametrize("n", [1, 5, 40, 10_000])
def test_intervals_of_nothing_and_of_all_end_exactly_there(n: int) -> None:
    for share in (0.0, 1.0):
        exact = stats.binomtest(round(share * n), n).proportion_ci(method="wilson")
        assert wilson(share, n) == pytest.approx((exact.low, exact.high), abs=1e-12)
        assert wilson(share, n)[int(share)] == share
