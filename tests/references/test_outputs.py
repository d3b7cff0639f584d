"""Losses, accuracies and outputs of variants against scikit-learn, torchmetrics, transformers and pandas."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torchmetrics
from scipy import linalg, special, stats
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.text import Perplexity

import learnscope as ls
from probes.reference import mlp, tiny_gpt2, tokens
from references.holding import Held, holds
from references.table import outputs
from references.variants import compared

Array = np.ndarray[Any, Any]
Batch = tuple[Tensor, Tensor]


def classes(n: int, kinds: int, features: int = 6, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=generator), torch.randint(kinds, (n,), generator=generator)


def split(batch: Batch, size: int) -> list[Batch]:
    return list(zip(batch[0].split(size), batch[1].split(size), strict=True))


def logits_of(model: nn.Module, x: Tensor) -> Array:
    with torch.no_grad():
        found: Array = model.eval()(x).double().numpy()
    return found


@pytest.mark.parametrize(("n", "kinds", "sharpness"), [(101, 7, 1.0), (64, 11, 12.0), (12, 11, 1.0)])
@holds(outputs.CLASSIFIED, outputs.WILSON)
def test_classes(held: Held, n: int, kinds: int, sharpness: float) -> None:
    """Sizes that batches do not divide, sure predictions, classes that no example has."""
    x, y = classes(n, kinds)
    model = mlp(6, 16, kinds)
    with torch.no_grad():
        model[2].weight.mul_(sharpness)
    run = ls.audit(model, split((x, y), 32), probes=[ls.Performance(top_k=(1, 3))], strict=True)
    logits, labels = logits_of(model, x), np.arange(kinds)
    assert special.softmax(logits, 1).min() > 1e-15  # below, scikit-learn clips
    held(run, "Performance.loss", log_loss(y, special.softmax(logits, 1), labels=labels))
    held(run, "Performance.accuracy", accuracy_score(y, logits.argmax(1)))
    for k in (1, 3):
        share = top_k_accuracy_score(y, logits, k=k, labels=labels)
        held(run, "Performance.top_k_accuracy", share, k=k)
        ends = stats.binomtest(round(share * n), n).proportion_ci(method="wilson")
        for end, value in (("low", ends.low), ("high", ends.high)):
            held(run, f"Performance.top_k_accuracy_{end}", value, k=k)
            if k == 1:
                held(run, f"Performance.accuracy_{end}", value)


def padded(rows: int, length: int, seed: int) -> dict[str, Tensor]:
    ids, mask = tokens(rows, length, seed=seed), torch.ones(rows, length, dtype=torch.int64)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@holds(outputs.PERPLEXITY, outputs.TOKEN_LOSS)
def test_tokens(held: Held) -> None:
    """Ragged texts with padding: every token counts once, whatever batch it is in."""
    model = tiny_gpt2().eval()
    batches = [padded(3, 9, 0), padded(2, 14, 1), padded(5, 5, 2)]
    run = ls.audit(model, batches, probes=[ls.Performance()], strict=True)
    perplexity, total, count = Perplexity(ignore_index=-100), 0.0, 0
    with torch.no_grad():
        for batch in batches:
            out = model(**batch)
            perplexity.update(out.logits[:, :-1], batch["labels"][:, 1:])
            predicted = int((batch["labels"][:, 1:] != -100).sum())
            total, count = total + float(out.loss) * predicted, count + predicted
    held(run, "Performance.perplexity", float(perplexity.compute()))
    held(run, "Performance.loss", total / count)


@holds(outputs.HELD_OUT)
def test_holdout(held: Held) -> None:
    x, y = classes(53, 4)
    model = mlp(6, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = ls.Holdout(every=1)
    with ls.watch(model, optimizer, probes=[probe], holdout=split((x, y), 20), strict=True) as w:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    accuracy = torchmetrics.Accuracy("multiclass", num_classes=4)
    loss = torchmetrics.MeanMetric().set_dtype(torch.float64)
    with torch.no_grad():
        for a, b in split((x, y), 20):
            out = model.eval()(a).double()
            accuracy.update(out, b)
            loss.update(F.cross_entropy(out, b, reduction="none"))
    held(w.run, "Holdout.holdout_accuracy", float(accuracy.compute()))
    held(w.run, "Holdout.holdout_loss", float(loss.compute()))


@holds(outputs.BATCHES)
def test_batches(held: Held) -> None:
    def watched(batch: Batch) -> ls.Run:
        model = mlp(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with ls.watch(model, optimizer, probes=[ls.BatchStats(every=1)], strict=True) as w:
            w.batch(batch)
            model(batch[0]).sum().backward()
            optimizer.step()
        return w.run

    x, y = classes(41, 5)
    y = y.where(y != 3, 2)  # a class that is not there
    y[:6] = -100  # targets that do not count
    run, series = watched((x, y)), pd.Series(y.numpy()).replace(-100, np.nan)
    held(run, "BatchStats.batch_size", series.size)
    held(run, "BatchStats.targets", series.count())
    shares = {str(int(kind)): share for kind, share in series.value_counts(normalize=True).items()}
    held(run, "BatchStats.share", shares, "class")
    run, series = watched((x, x[:, 0] * 1e3)), pd.Series(x[:, 0].double().numpy() * 1e3)
    held(run, "BatchStats.target_mean", series.mean())
    held(run, "BatchStats.target_std", series.std())


@holds(outputs.LOGGED)
def test_logged_numbers(held: Held) -> None:
    model = mlp(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = {"loss": [0.3, 0.7, 1e3], "accuracy": [0.25, 0.5, 0.5], "reward": [-0.0, 1e-8, 2.0]}
    with ls.watch(model, optimizer, probes=[ls.Loss()], strict=True) as w:
        for place in range(3):
            model(torch.randn(4, 6)).sum().backward()
            w.log(**{name: values[place] for name, values in numbers.items()})
        optimizer.step()
    for name, values in numbers.items():
        held(w.run, f"Loss.{name}", pd.Series(values).mean())
        held(w.run, f"Loss.{name}_std", pd.Series(values).std())


def stepped(model: nn.Module, probe: ls.Probe, batch: Batch) -> tuple[ls.Run, dict[str, Array]]:
    """A watched step that moves the weights by amounts of very different sizes, and the weights before it."""
    old = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with ls.watch(model, optimizer, probes=[probe], holdout=split(batch, 40), strict=True) as w:
        for place, p in enumerate(model.parameters()):
            p.grad = 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(place)).to(p).pow(3)
        optimizer.step()
    return w.run, old


def rebuilt(model: nn.Module, weights: dict[str, Array]) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in other.named_parameters():
            p.copy_(torch.from_numpy(weights[name]))
    return other


@holds(outputs.SPARSE)
def test_sparse_updates(held: Held) -> None:
    x, y = classes(70, 5)
    model, thresholds = mlp(6, 12, 5, dtype=torch.float64), (0.05, 0.3)
    run, old = stepped(model, ls.SparseQuality(every=1, thresholds=thresholds, examples=70), (x.double(), y))
    new = {name: p.detach().numpy() for name, p in model.named_parameters()}
    for threshold in thresholds:
        kept = {name: np.abs(new[name] - old[name]) > threshold for name in new}
        other = rebuilt(model, {name: np.where(kept[name], new[name], old[name]) for name in new})
        theirs = compared(logits_of(model, x.double()), logits_of(other, x.double()), y.numpy())
        theirs["kept_share"] = float(np.concatenate([mask.ravel() for mask in kept.values()]).mean())
        for name, value in theirs.items():
            held(run, f"SparseQuality.{name}", value, threshold=threshold, mask="magnitude")


def truncated(delta: Array, rank: int) -> Array:
    svd = TruncatedSVD(rank, algorithm="arpack", random_state=0)
    found: Array = svd.fit_transform(delta) @ svd.components_
    return found


@holds(outputs.LOW_RANK)
def test_low_rank_updates(held: Held) -> None:
    x, y = classes(70, 5)
    model, ranks = mlp(6, 12, 9, 5, dtype=torch.float64), (1, 3)
    bound = 0.3
    run, old = stepped(model, ls.LowRankQuality(every=1, ranks=ranks, examples=70, kl_bound=bound), (x.double(), y))
    new = {name: p.detach().numpy() for name, p in model.named_parameters()}
    deltas = {name: new[name] - old[name] for name in new if new[name].ndim == 2}
    near = []
    for rank in ranks:
        cut = {name: truncated(delta, rank) for name, delta in deltas.items()}
        other = rebuilt(model, {name: old[name] + cut[name] if name in cut else new[name] for name in new})
        theirs = compared(logits_of(model, x.double()), logits_of(other, x.double()), y.numpy())
        for name, value in theirs.items():
            held(run, f"LowRankQuality.{name}", value, rank=rank)
        energies = [sum(linalg.norm(m) ** 2 for m in matrices.values()) for matrices in (cut, deltas)]
        held(run, "LowRankQuality.energy_captured", energies[0] / energies[1], rank=rank)
        near += [rank] if theirs["kl"] <= bound else []
    held(run, "LowRankQuality.recommended_rank", min(near), kl_bound=bound)
    for name, delta in deltas.items():
        values = TruncatedSVD(min(delta.shape) - 1, algorithm="arpack", random_state=0).fit(delta).singular_values_
        held(run, "LowRankQuality.stable_rank", {name: linalg.norm(delta) ** 2 / values[0] ** 2}, "tensor")
        shares = np.cumsum(values**2) / linalg.norm(delta) ** 2
        held(run, "LowRankQuality.rank_for_energy", {name: np.argmax(shares >= 0.9) + 1}, "tensor", energy=0.9)
