"""Examples and groups of them against scikit-learn, SciPy, pandas; statsmodels and cleanlab in `make soak`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import special, stats
from scipy.stats.contingency import association
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score
from sklearn.metrics.pairwise import paired_cosine_distances
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from probes.reference import mlp
from references.holding import Held, holds, package
from references.table import outputs

Array = np.ndarray[Any, Any]
KINDS = 4


def data(n: int, seed: int, kinds: int = KINDS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(kinds, (n,), generator=generator)


def trained(batch: tuple[Tensor, Tensor], steps: int = 60) -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, KINDS))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    return model.eval()


def probabilities(model: nn.Module, x: Tensor) -> Array:
    with torch.no_grad():
        return special.softmax(model(x).double().numpy(), 1)


def tied(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Every example three times: equal losses, equal confidences."""
    return batch[0].repeat(3, 1), batch[1].repeat(3)


@pytest.mark.parametrize("ties", [False, True])
@holds(outputs.MEMORIZED, outputs.SURE)
def test_memorization(held: Held, ties: bool) -> None:
    sets = {"train": data(150, 0), "test": data(90, 1)}
    sets["test"] = (sets["test"][0], sets["test"][1].clamp(max=KINDS - 2))  # a class that only training has
    model = trained(sets["train"])
    sets = {name: tied(batch) if ties else batch for name, batch in sets.items()}
    run = ls.audit(model, train=[sets["train"]], test=[sets["test"]], probes=[ls.Memorization()], strict=True)
    p = {name: probabilities(model, x) for name, (x, _) in sets.items()}
    y = {name: target.numpy() for name, (_, target) in sets.items()}
    labels = np.arange(KINDS)
    for name in sets:
        row = {"kind": "split"}
        held(run, "Memorization.accuracy", {name: accuracy_score(y[name], p[name].argmax(1))}, **row)
        held(run, "Memorization.loss", {name: log_loss(y[name], p[name], labels=labels)}, **row)
        brier = brier_score_loss(y[name], p[name], labels=labels, scale_by_half=False)
        held(run, "Memorization.brier", {name: brier}, **row)
        held(run, "Memorization.confidence", {name: pd.DataFrame(p[name]).max(axis=1).mean()}, **row)
    gold = {name: p[name][np.arange(len(y[name])), y[name]] for name in sets}
    member = np.repeat([1, 0], [len(y["train"]), len(y["test"])])
    held(run, "Memorization.proxy_membership_auc", roc_auc_score(member, np.log(np.r_[gold["train"], gold["test"]])))
    accuracy = {name: accuracy_score(y[name], p[name].argmax(1)) for name in sets}
    held(run, "Memorization.generalization_gap", accuracy["train"] - accuracy["test"])
    loss = {name: log_loss(y[name], p[name], labels=labels) for name in sets}
    held(run, "Memorization.loss_gap", loss["test"] - loss["train"])
    usual = pd.Series(gold["test"]).groupby(y["test"]).mean()
    excess = pd.Series(gold["train"]) - pd.Series(y["train"]).map(usual)
    held(run, "Memorization.proxy_excess_confidence", excess.mean())


@pytest.mark.parametrize("n", [150, 300])
@holds(outputs.CALIBRATED)
def test_calibration(held: Held, n: int) -> None:
    """Where the bins divide the number of predictions, both cut in the same places."""
    train, test = data(n, 0), data(n, 5)
    model = trained(train)
    run = ls.audit(model, train=[train], test=[test], probes=[ls.Memorization(bins=15)], strict=True)
    for name, (x, y) in {"train": train, "test": test}.items():
        p = probabilities(model, x)
        right, sure = p.argmax(1) == y.numpy(), p.max(1)
        assert len(np.unique(sure)) == n
        accuracy, confidence = calibration_curve(right, sure, n_bins=15, strategy="quantile")
        held(run, "Memorization.calibration_error", {name: np.abs(accuracy - confidence).mean()}, "split")


def biased(n: int, seed: int, share: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs that show an attribute, which is the class for a share of the examples."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(KINDS, (n,), generator=generator)
    other = torch.randint(KINDS, (n,), generator=generator)
    attribute = torch.where(torch.rand(n, generator=generator) < share, y, other)
    x = torch.randn(n, 5, generator=generator) + 0.8 * F.one_hot(y, 5) + F.one_hot(attribute, 5).roll(1, 1)
    return x, y, torch.arange(n), attribute


@pytest.fixture(scope="module")
def grouped() -> tuple[ls.Run, pd.DataFrame, Any]:
    """A run, its test examples with what the model says of them, and the training examples."""
    train, test = biased(400, 0, 0.9), biased(301, 1, 0.2)
    model = trained(train[:2])
    run = ls.audit(model, train=[train], test=[test], probes=[ls.GroupAccuracy()], strict=True)
    p, y = probabilities(model, test[0]), test[1].numpy()
    gold = p[np.arange(len(y)), y]
    return run, pd.DataFrame({
        "group": test[3].numpy(), "y": y, "predicted": p.argmax(1), "gold": gold, "loss": -np.log(gold),
    }), train  # fmt: skip


@holds(outputs.GROUPS, outputs.ASSOCIATION)
def test_groups(held: Held, grouped: tuple[ls.Run, pd.DataFrame, Any]) -> None:
    run, frame, train = grouped
    frame = frame.assign(right=frame.predicted == frame.y)
    by = frame.groupby("group")
    for name, column in {"accuracy": "right", "gold_probability": "gold", "loss": "loss"}.items():
        means = {str(group): value for group, value in by[column].mean().items()}
        held(run, f"GroupAccuracy.{name}", means, "group")
    for name in ("positions", "examples"):
        held(run, f"GroupAccuracy.{name}", {str(group): n for group, n in by.size().items()}, "group")
    counts = pd.crosstab(train[3].numpy(), train[1].numpy()).to_numpy()
    held(run, "GroupAccuracy.association", association(counts, method="cramer"))


def sides(frame: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """How many of how many: in training, each group suggests the class of its number."""
    aligned = frame[frame.group == frame.y]
    conflicting = frame[frame.group != frame.y]
    return {
        "aligned_accuracy": (int((aligned.predicted == aligned.y).sum()), len(aligned)),
        "conflicting_accuracy": (int((conflicting.predicted == conflicting.y).sum()), len(conflicting)),
        "attribute_following": (int((conflicting.predicted == conflicting.group).sum()), len(conflicting)),
    }


@holds(outputs.SIDES)
def test_aligned_and_conflicting(held: Held, grouped: tuple[ls.Run, pd.DataFrame, Any]) -> None:
    run, frame, _ = grouped
    shares = {}
    for name, (right, n) in sides(frame).items():
        test = stats.binomtest(right, n)
        ends = test.proportion_ci(method="wilson")
        shares[name] = test.statistic
        for end, value in (("", test.statistic), ("_low", ends.low), ("_high", ends.high)):
            held(run, f"GroupAccuracy.{name}{end}", value)
    held(run, "GroupAccuracy.bias_gap", shares["aligned_accuracy"] - shares["conflicting_accuracy"])


@pytest.mark.soak
@holds(outputs.SIDES_OF_STATSMODELS)
def test_intervals_of_statsmodels(held: Held, grouped: tuple[ls.Run, pd.DataFrame, Any]) -> None:
    proportion = package("statsmodels.stats.proportion")
    run, frame, _ = grouped
    counts = sides(frame)
    for name, (right, n) in counts.items():
        for end, value in zip(("low", "high"), proportion.proportion_confint(right, n, method="wilson"), strict=True):
            held(run, f"GroupAccuracy.{name}_{end}", value)
    pair = (*counts["aligned_accuracy"], *counts["conflicting_accuracy"])
    ends = proportion.confint_proportions_2indep(*pair, method="newcomb", compare="diff")
    for end, value in zip(("low", "high"), ends, strict=True):
        held(run, f"GroupAccuracy.bias_gap_{end}", value)


def followed(epochs: int = 5) -> tuple[ls.Run, pd.DataFrame, Array, Array]:
    """A run in which every example is presented in every epoch; visits with their probabilities and logits."""
    x, y = data(77, 2)
    torch.manual_seed(1)
    model = mlp(5, 24, KINDS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    ids, logits, rows = [], [], []
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger()], strict=True) as w:
        for epoch in range(epochs):
            for part in torch.randperm(77, generator=torch.Generator().manual_seed(epoch)).split(20):
                optimizer.zero_grad()
                out = model(x[part])
                F.cross_entropy(out, y[part]).backward()
                w.examples(part, out, y[part])
                optimizer.step()
                ids.append(part.numpy())
                logits.append(out.detach().double().numpy())
                rows.append(np.full(len(part), epoch))
            w.end_epoch()
    frame = pd.DataFrame({"id": np.concatenate(ids), "epoch": np.concatenate(rows)})
    frame["y"] = y.numpy()[frame.id]
    all_logits = np.concatenate(logits)
    return w.run, frame, special.softmax(all_logits, 1), all_logits


@holds(outputs.PRESENTED, outputs.QUANTILES)
def test_examples_over_their_presentations(held: Held) -> None:
    run, frame, p, _ = followed()
    labels, y = np.arange(KINDS), frame.y.to_numpy()
    frame["gold"] = p[np.arange(len(y)), y]
    frame["el2n"] = [brier_score_loss(y[[i]], p[[i]], labels=labels, scale_by_half=False) ** 0.5 for i in range(len(y))]
    frame["loss"] = [log_loss(y[[i]], p[[i]], labels=labels) for i in range(len(y))]
    last = (frame.epoch == frame.epoch.max()).to_numpy()
    held(run, "ExampleLedger.accuracy", accuracy_score(y[last], p[last].argmax(1)))
    held(run, "ExampleLedger.mean_loss", log_loss(y[last], p[last], labels=labels))
    held(run, "ExampleLedger.mean_p_gold", frame.gold[last].mean())
    by = frame.groupby("id")
    each = pd.DataFrame({
        "confidence": by.gold.mean(), "variability": by.gold.std(ddof=0), "el2n": by.el2n.mean(),
        "cumulative_loss": by.loss.sum(),
    })  # fmt: skip
    for name in each:
        held(run, f"ExampleLedger.mean_{name}", each[name].mean())
        held(run, f"ExampleLedger.{name}", {str(q): each[name].quantile(q) for q in (0.1, 0.5, 0.9)}, "quantile")


@pytest.mark.soak
@holds(outputs.LABEL_QUALITY)
def test_label_quality_of_cleanlab(held: Held) -> None:
    rank = package("cleanlab.rank")
    run, frame, p, logits = followed()
    y = frame.y.to_numpy()
    frame["confidence"] = rank.get_self_confidence_for_each_label(y, p)
    frame["aum"] = 2 * rank.get_normalized_margin_for_each_label(y, logits) - 1
    each = frame.groupby("id")[["confidence", "aum"]].mean()
    for name in each:
        held(run, f"ExampleLedger.mean_{name}", each[name].mean())
        held(run, f"ExampleLedger.{name}", {str(q): each[name].quantile(q) for q in (0.1, 0.5, 0.9)}, "quantile")


def per_example(model: nn.Module, x: Tensor, y: Tensor) -> Array:
    """The gradient of each example's loss, by a backward of its own."""
    rows = []
    for a, b in zip(x, y, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(model(a[None]), b[None]), list(model.parameters()))
        rows.append(np.concatenate([g.numpy().ravel() for g in grads]))
    return np.stack(rows)


@holds(outputs.TRANSITIONS)
def test_transitions(held: Held) -> None:
    x, y = data(31, 4)
    x = x.double()
    model = mlp(5, 12, KINDS, dtype=torch.float64)
    then = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with ls.watch(model, optimizer, probes=[ls.ExampleTransitions()], train=[(x, y)], strict=True) as w:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        w.end_epoch()
    cosine = pd.Series(1 - paired_cosine_distances(per_example(then, x, y), per_example(model, x, y)))
    before, after = (probabilities(one, x) for one in (then, model))
    labels = np.arange(KINDS)
    losses = [[log_loss(y[[i]], p[[i]], labels=labels) for i in range(len(y))] for p in (before, after)]
    drop = pd.Series(losses[0]) - pd.Series(losses[1])
    for name, values in (("cosine", cosine), ("loss_drop", drop)):
        held(w.run, f"ExampleTransitions.mean_{name}", values.mean())
        quantiles = {str(q): values.quantile(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95)}
        held(w.run, f"ExampleTransitions.{name}", quantiles, "quantile")
