"""Evaluations of awkward data by awkward models, against NumPy, scikit-learn and plain loops over whole curves."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import learnscope as ls
from learnscope.core.moment import NotAvailable
from learnscope.dynamics import LearningDynamicsAnalyzer, MemorizationDetector

CLASSES = 3


def data(n: int, seed: int = 0, classes: int = CLASSES) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 4, generator=generator), torch.randint(classes, (n,), generator=generator))


def net(classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, classes))


def softmax(z: Tensor) -> np.ndarray[Any, Any]:
    wide = z.detach().double().numpy()
    grown = np.exp(wide - wide.max(1, keepdims=True))
    return np.asarray(grown / grown.sum(1, keepdims=True))


# --- the end of the memorizing plateau ----------------------------------------------------------------------


class Scripted(nn.Module):
    """Right on the first so many training and test examples; all of the class 0. An example is (split, number)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.right = (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        known = torch.where(x[:, 0] == 0, x[:, 1] < self.right[0], x[:, 1] < self.right[1])
        return torch.where(known[:, None], torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])) * self.weight


SIZE = 20
TRAIN, TEST = (
    TensorDataset(torch.stack([torch.full((SIZE,), s), torch.arange(SIZE)], 1), torch.zeros(SIZE, dtype=torch.int64))
    for s in (0, 1)
)
UNLABELLED = TensorDataset(TEST.tensors[0], TEST.tensors[1] - 100)
"""A gap with these is not known."""


def reference_transition(curve: dict[int, float]) -> int | None:
    epochs = [epoch for epoch in sorted(curve) if not math.isnan(curve[epoch])]
    gaps = [curve[epoch] for epoch in epochs]
    if not gaps or max(gaps) < 0.1:
        return None
    last_peak = max(i for i, gap in enumerate(gaps) if gap == max(gaps))
    for i in range(last_peak + 1, len(gaps) - 1):
        if gaps[i] < max(gaps) / 2 and gaps[i + 1] < max(gaps) / 2:
            return epochs[i]
    return None


@pytest.mark.parametrize("seed", range(30))
def test_the_transition_against_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model, detector, curve = Scripted(), MemorizationDetector(num_classes=2), {}
    length = int(rng.integers(1, 14))
    peak = int(rng.choice([1, 2, 4, 10, 20]))
    epochs = rng.permutation(rng.integers(0, 12, length)).tolist()  # some twice, in any order
    for epoch in epochs:
        train, test = int(rng.integers(0, peak + 1)), int(rng.choice([0, 0, 0, rng.integers(0, 5)]))
        model.right = (train, test)
        unknown = rng.random() < 0.1
        scores = detector.compute_memorization_scores(model, TRAIN, UNLABELLED if unknown else TEST, epoch)
        curve[epoch] = math.nan if unknown else train / SIZE - test / SIZE
        assert scores["memorization_score"] == pytest.approx(curve[epoch], abs=1e-12, nan_ok=True)
        assert ("test_accuracy" in scores["reasons"]) == unknown
    found = detector.analyze_memorization_evolution()
    known = {epoch: gap for epoch, gap in sorted(curve.items()) if not math.isnan(gap)}
    assert found["epochs"] == sorted(curve)
    assert found["memorization_score"] == pytest.approx([curve[epoch] for epoch in sorted(curve)], nan_ok=True)
    assert found["transition_epoch"] == reference_transition(curve)
    assert (found["reason"] is None) == (found["transition_epoch"] is not None)
    assert found["peak_gap"] == pytest.approx(max(known.values(), default=math.nan), nan_ok=True)
    assert found["final_gap"] == pytest.approx(list(known.values())[-1] if known else math.nan, nan_ok=True)
    if known:
        assert known[found["peak_epoch"]] == pytest.approx(max(known.values()))


@pytest.mark.parametrize(
    ("curve", "wanted"),
    [
        ([0, 20, 20, 9, 9], 3),
        ([0, 20, 10, 10, 10], None),  # half is not below half
        ([0, 20, 9, 20, 9, 9], 4),  # after the last time at the peak
        ([20, 9, 11, 9], None),  # below twice, not twice in a row
        ([9, 9, 20], None),  # what was before the peak is no end of it
        ([2, 0, 0], 1),  # a peak of exactly 0.1
        ([1, 0, 0], None),
    ],
)
def test_known_curves(curve: list[int], wanted: int | None) -> None:
    model, detector = Scripted(), MemorizationDetector()
    for epoch, right in enumerate(curve):
        model.right = (right, 0)
        detector.compute_memorization_scores(model, TRAIN, TEST, epoch)
    found = detector.analyze_memorization_evolution()
    assert found["transition_epoch"] == wanted
    assert wanted is not None or found["reason"].startswith("the gap")


# --- calibration, label noise -------------------------------------------------------------------------------


class Rounded(nn.Module):
    """Whose confidences are often the same."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.inner, self.places = net(), places

    def forward(self, x: Tensor) -> Any:
        return (self.inner(x) * 4).mul(self.places).round().div(self.places)


@pytest.mark.parametrize(("n_train", "n_test"), [(10, 10), (19, 400), (160, 150), (333, 99)])
@pytest.mark.parametrize("places", [1, 1000])
def test_calibration_is_scikit_learns(n_train: int, n_test: int, places: int) -> None:
    model, detector = Rounded(places), MemorizationDetector()
    splits = {"train": data(n_train), "test": data(n_test, 1)}
    detector.compute_memorization_scores(model, DataLoader(splits["train"]), splits["test"], 0)
    bins = min(15, n_train // 10, n_test // 10)
    for split, dataset in splits.items():
        p = softmax(model(dataset.tensors[0]))
        right = (p.argmax(1) == dataset.tensors[1].numpy()).tolist()
        told = detector.calibration()[split]
        accuracy, mean = calibration_curve(right, p.max(1).round(12), n_bins=bins, strategy="quantile")
        sizes = told["reliability"]["n"].to_numpy()
        sizes = sizes[sizes > 0]
        assert sizes.sum() == len(dataset)
        assert sizes @ mean == pytest.approx(p.max(1).sum(), rel=1e-6)
        assert told["calibration_error"] == pytest.approx(sizes @ abs(accuracy - mean) / len(dataset), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_label_noise_over_evaluations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, noisy = data(80, seed), rng.random(80) < 0.2
    detector, losses, against = MemorizationDetector(), [], [Counter[int]() for _ in range(80)]
    labels = train.tensors[1].numpy()
    for epoch in range(4):
        torch.manual_seed(epoch)
        model = Rounded(2)
        model.inner = nn.Linear(4, CLASSES)
        detector.compute_memorization_scores(model, DataLoader(train, batch_size=7, shuffle=True), data(20, 9), epoch)
        p = softmax(model(train.tensors[0]))
        losses.append(-np.log(p[np.arange(80), labels]))
        z = model(train.tensors[0]).detach().numpy()
        for i in range(80):
            predicted = int(z[i].argmax())
            if predicted != labels[i]:
                against[i][predicted] += losses[-1][i]  # type: ignore[assignment]
    score = np.mean(losses, 0)
    found = detector.find_label_noise(true_noise=noisy)
    assert found.attrs["evaluations"] == 4
    by_example = found.set_index("example").sort_index()
    assert by_example["score"].to_numpy() == pytest.approx(score, rel=1e-5, abs=1e-6)  # the task's losses are float32
    assert found["score"].is_monotonic_decreasing
    assert by_example["label"].tolist() == labels.tolist()
    assert by_example["noisy"].tolist() == noisy.tolist()
    for i, votes in enumerate(against):
        suggested = by_example["suggested"][i]
        if votes:
            assert votes[int(suggested)] == pytest.approx(max(votes.values()), rel=1e-5)
        else:
            assert suggested is not None
            assert suggested is not np.nan
            assert str(suggested) == "<NA>"
    told = detector.noise_score(noisy)
    exact = by_example["score"].to_numpy()
    assert told["auroc"] == pytest.approx(roc_auc_score(noisy, exact), rel=1e-12)
    first = np.argsort(-exact, kind="stable")[: int(noisy.sum())]
    assert told["precision_at_k"] == pytest.approx(noisy[first].mean())
    assert detector.noise_score(np.flatnonzero(noisy).tolist()) == told
    assert detector.noise_score(torch.from_numpy(noisy)) == told


def evaluated() -> MemorizationDetector:
    detector = MemorizationDetector()
    detector.compute_memorization_scores(net(), data(30), data(30, 1), 0)
    return detector


@pytest.mark.parametrize("k", [0, -1, 1.5, "all"])
def test_so_many_of_the_first_is_a_whole_number(k: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"k={k!r}: a whole number"):
        evaluated().noise_score([1, 2], k)
    with pytest.raises((TypeError, ValueError), match=f"top_k={k!r}: a whole number"):
        evaluated().find_label_noise(k)


def test_noise_without_any_or_of_all_has_no_area() -> None:
    detector = evaluated()
    none, everything = detector.noise_score([]), detector.noise_score(np.ones(30, bool))
    assert math.isnan(none["auroc"])
    assert math.isnan(none["precision_at_k"])
    assert math.isnan(everything["auroc"])
    assert everything["precision_at_k"] == 1.0


# --- splits of every kind -----------------------------------------------------------------------------------


def test_less_than_a_batch_and_one_example() -> None:
    model = net()
    for n in (1, 3):
        train, test = data(n), data(64, 1)
        scores = MemorizationDetector(CLASSES).compute_memorization_scores(
            model, DataLoader(train, batch_size=8, drop_last=True), DataLoader(test, batch_size=50, drop_last=True), 0
        )
        for split, dataset in (("train", train), ("test", test)):
            x, y = dataset.tensors
            assert scores[f"{split}_examples"] == len(y)
            assert scores[f"{split}_accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))
        assert math.isnan(scores["train_calibration_error"])
        assert scores["reasons"]["train_calibration_error"] == "fewer than 10 predictions"
        assert scores["reasons"]["test_calibration_error"].startswith("the other split has fewer than 10 predictions")


def test_classes_that_a_split_lacks() -> None:
    x, y = data(60).tensors
    one = TensorDataset(x[y == 0], y[y == 0])
    model, detector = net(), MemorizationDetector(CLASSES)
    detector.compute_memorization_scores(model, data(60), one, 0)
    frame = detector.memorization_proxies()
    p = softmax(model(x))
    mean = p[y.numpy() == 0, 0].mean()
    for row in frame.itertuples():
        wanted = p[row.example, 0] - mean if row.label == 0 else math.nan
        assert row.excess == pytest.approx(wanted, abs=1e-6, nan_ok=True)
    scores = detector.compute_memorization_scores(model, one, one, 1)
    assert scores["memorization_score"] == 0
    assert scores["proxy_membership_auc"] == 0.5


def test_a_split_without_a_single_target_is_no_zero() -> None:
    detector = MemorizationDetector()
    for train, test, empty in ((UNLABELLED, TEST, "train"), (TRAIN, UNLABELLED, "test")):
        scores = detector.compute_memorization_scores(Scripted(), train, test, 0)
        for name in (f"{empty}_accuracy", f"{empty}_loss", "memorization_score", "proxy_excess_confidence"):
            assert math.isnan(scores[name]), name
        assert scores["reasons"][f"{empty}_accuracy"] == "no position has a target"


def test_logits_that_are_not_finite_are_wrong_and_have_no_loss() -> None:
    train, test = data(40), data(40, 1)
    broken = TensorDataset(torch.where(torch.arange(40)[:, None] < 5, torch.nan, train.tensors[0]), train.tensors[1])
    model, detector = net(), MemorizationDetector()
    scores = detector.compute_memorization_scores(model, broken, test, 0)
    right = (model(train.tensors[0]).argmax(1) == train.tensors[1])[5:]
    assert scores["train_accuracy"] == pytest.approx(float(right.sum()) / 40)
    assert math.isnan(scores["train_loss"])
    assert "train_loss" in scores["reasons"]
    assert math.isfinite(scores["test_loss"])
    assert detector.find_label_noise()["score"].isna().tolist() == [False] * 35 + [True] * 5


@pytest.mark.parametrize("shape", ["[N]", "[N, 1]", "several labels"])
def test_regression_has_losses_and_says_what_it_has_not(shape: str) -> None:
    x = data(40).tensors[0]
    width = 3 if shape == "several labels" else 1
    y = torch.randn(40, width) if shape != "[N]" else torch.randn(40)
    model: Any = nn.Linear(4, width)
    detector = MemorizationDetector()
    scores = detector.compute_memorization_scores(model, TensorDataset(x, y), TensorDataset(x, y), 0)
    wanted = float((model(x).double() - y.reshape(40, width).double()).square().mean())
    assert scores["train_loss"] == pytest.approx(wanted, rel=1e-5)
    for name in ("train_accuracy", "memorization_score", "train_calibration_error", "proxy_excess_confidence"):
        assert math.isnan(scores[name])
        assert "float targets" in scores["reasons"][name if name != "memorization_score" else "generalization_gap"]
    with pytest.raises(NotAvailable, match="the targets are not classes"):
        detector.find_label_noise()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(data(5))


@pytest.mark.parametrize(
    ("train", "test", "options", "said"),
    [
        (None, data(5), {}, "train_loader is None"),
        (data(5), None, {}, "test_loader is None"),
        (DataLoader(Stream()), data(5), {}, "IterableDataset cannot be read without advancing it"),
        (data(5), iter(DataLoader(data(5))), {}, "an iterator would be used up"),
        (data(0), data(5), {}, "empty"),
        (TensorDataset(data(5).tensors[0]), data(5), {}, "have no targets"),
        (data(30, classes=4), data(5), {}, "none of the model's classes.*classes are counted from 0, one per logit"),
        (TensorDataset(data(30).tensors[0], data(30).tensors[1] - 1), data(5), {}, "classes are counted from 0"),
        (data(30), data(5), {"num_classes": 2}, "num_classes=2, but batch 0 of the train data has target 2"),
        (data(30), data(5), {"num_classes": 7}, "num_classes=7, but the model tells 3 classes apart"),
    ],
)
def test_data_that_cannot_be_used_are_refused_and_leave_what_was_there(
    train: Any, test: Any, options: dict[str, Any], said: str
) -> None:
    detector = MemorizationDetector(**options)
    before = None
    if not options:
        detector.compute_memorization_scores(net(), data(20), data(20, 1), 0)
        before = detector.analyze_memorization_evolution()
    with pytest.raises((TypeError, ValueError), match=said):
        detector.compute_memorization_scores(net(), train, test, 1)
    if before is None:
        with pytest.raises(NotAvailable, match="call compute_memorization_scores first"):
            detector.analyze_memorization_evolution()
    else:
        assert str(detector.analyze_memorization_evolution()) == str(before)


class Counting(Dataset[Any]):
    """Counts its readers' requests, and draws at each."""

    def __init__(self, n: int) -> None:
        self.inner, self.asked = data(n), Counter[int]()

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        x, y = self.inner[index]
        return x + 0 * torch.rand(()), y


def test_all_of_the_data_set_is_read_whatever_the_loader_takes_of_it_and_no_generator_moves() -> None:
    train, model = Counting(23), net()
    generator = torch.Generator().manual_seed(4)
    loader = DataLoader(train, batch_size=5, sampler=SubsetRandomSampler(range(3), generator=generator), drop_last=True)
    state, own = torch.get_rng_state(), generator.get_state()
    detector = MemorizationDetector()
    scores = detector.compute_memorization_scores(model, loader, data(9, 1), 0)
    assert scores["train_examples"] == 23
    assert set(train.asked) == set(range(23))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(generator.get_state(), own)


@pytest.mark.parametrize("kind", ["inference_mode", "autocast", "compiled", "DataParallel"])
def test_loops_and_wrappers(kind: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    flags, kept = [m.training for m in model.modules()], copy.deepcopy(model.state_dict())
    plain = MemorizationDetector().compute_memorization_scores(model, data(40), data(40, 1), 0)
    used: Any = {"compiled": lambda m: torch.compile(m, backend="eager"), "DataParallel": nn.DataParallel}.get(
        kind, lambda m: m
    )(model)
    context: Callable[[], Any] = {
        "inference_mode": torch.inference_mode, "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }.get(kind, torch.enable_grad)  # fmt: skip
    with context():
        found = MemorizationDetector().compute_memorization_scores(used, data(40), data(40, 1), 0)
    tolerance = 3e-2 if kind == "autocast" else 1e-6
    assert found["test_loss"] == pytest.approx(plain["test_loss"], rel=tolerance)
    assert found["train_confidence"] == pytest.approx(plain["train_confidence"], rel=tolerance)
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_pixels_are_positions_and_images_examples() -> None:
    torch.manual_seed(0)
    model: Any = nn.Conv2d(2, CLASSES, 1)
    x, y = torch.randn(4, 2, 5, 6), torch.randint(CLASSES, (4, 5, 6))
    y[0] = -100
    detector = MemorizationDetector(CLASSES)
    scores = detector.compute_memorization_scores(model, TensorDataset(x, y), TensorDataset(x, y), 0)
    assert (scores["train_examples"], scores["train_positions"]) == (3, 90)
    right = (model(x).argmax(1) == y)[y != -100]
    assert scores["train_accuracy"] == pytest.approx(float(right.double().mean()))


def test_one_logit_is_a_yes_or_no() -> None:
    x = data(40).tensors[0]
    y = (x[:, 0] > 0).long()
    model: Any = nn.Linear(4, 1)
    detector = MemorizationDetector(num_classes=2)
    scores = detector.compute_memorization_scores(model, TensorDataset(x, y), TensorDataset(x, y[:, None]), 0)
    p = 1 / (1 + np.exp(-model(x).detach().double().numpy()[:, 0]))
    gold = np.where(y.numpy() == 1, p, 1 - p)
    assert scores["train_loss"] == pytest.approx(-np.log(gold).mean(), rel=1e-6)
    assert scores["train_accuracy"] == scores["test_accuracy"] == pytest.approx((gold > 0.5).mean())
    assert scores["train_brier"] == pytest.approx((2 * (1 - gold) ** 2).mean(), rel=1e-6)
    assert scores["train_confidence"] == pytest.approx(np.maximum(p, 1 - p).mean(), rel=1e-6)


def test_ids_of_an_indexed_data_set_and_noise_by_them() -> None:
    class Shifted(Dataset[Any]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> Any:
            return *data(30)[index], 500 + index

    detector = MemorizationDetector()
    detector.compute_memorization_scores(net(), DataLoader(Shifted(), batch_size=4, shuffle=True), data(9, 1), 0)
    mask = np.zeros(30, bool)
    mask[[3, 7]] = True
    assert detector.noise_score([503, 507]) == detector.noise_score(mask)
    with pytest.raises(ValueError, match="1 ids that the training data lack, first 3"):
        detector.noise_score([3])
    indexed = MemorizationDetector()
    indexed.compute_memorization_scores(net(), ls.IndexedDataset(data(30)), data(9, 1), 0)
    assert indexed.memorization_proxies()["id"].tolist() == list(range(30))


def test_a_copy_and_files_of_others(tmp_path: Path) -> None:
    detector = evaluated()
    other = copy.deepcopy(detector)
    other.compute_memorization_scores(net(), data(30), data(30, 1), 1)
    assert detector.analyze_memorization_evolution()["epochs"] == [0]
    assert other.analyze_memorization_evolution()["epochs"] == [0, 1]
    other.save(tmp_path / "m.pkl")
    whole = (tmp_path / "m.pkl").read_bytes()
    for length in (0, 8, len(whole) // 2, len(whole) - 1):
        (tmp_path / "torn").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"(?i)save the analyzer anew"):
            MemorizationDetector.load(tmp_path / "torn")
    with pytest.raises(ValueError, match="was saved by MemorizationDetector, not by LearningDynamicsAnalyzer"):
        LearningDynamicsAnalyzer.load(tmp_path / "m.pkl")
    loaded = MemorizationDetector.load(tmp_path / "m.pkl")
    assert str(loaded.analyze_memorization_evolution()) == str(other.analyze_memorization_evolution())
    assert loaded.find_label_noise().equals(other.find_label_noise())
