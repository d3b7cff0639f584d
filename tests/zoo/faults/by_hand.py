"""Losses that are written by hand, which no hook on torch's loss functions sees."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from zoo.loops import accuracy, fit, last
from zoo.material import digits, holdout, language, pairs, passages, teacher
from zoo.models import GPT, cnn, mlp
from zoo.registry import Check, Watch, below, fault, worse_than


def entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return -(outputs.log_softmax(1) * F.one_hot(targets, outputs.shape[1])).sum(1).mean()


def of_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return -outputs.log_softmax(-1).gather(2, targets[..., None]).mean()


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


@fault("inputs shuffled against labels, cross-entropy by hand", {"labels_unrelated"}, since=None)
def shuffled(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(seed))
    batches = pairs(data[0][order], data[1], steps=200, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=1e-3), batches, entropy, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.3)


@fault("learning rate of 1e-7, cross-entropy by hand", {"learning_rate_too_low"})
def slow(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    batches = pairs(*data[:2], steps=150, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1e-7), batches, entropy, holdout=holdout(data))
    return worse_than(last(losses), 2.2)


@fault("learning rate too high, squares by hand", {"diverging", "learning_rate_too_high", "nonfinite"})
def wild(watch: Watch, seed: int) -> Check:
    data, model = teacher(2000, seed=seed), mlp(16, 48, 1)
    batches = pairs(*data[:2], steps=150, size=64, seed=seed)
    losses = fit(watch, model, SGD(model.parameters(), lr=3.0), batches, squared)
    return worse_than(last(losses), 1.0)


@fault("loss maximised, tokens by hand", {"loss_maximised"})
def maximised(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 33, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=100, size=16, seed=seed)
    optimizer = AdamW(model.parameters(), lr=1e-3, maximize=True)
    losses = fit(watch, model, optimizer, batches, of_tokens, holdout=language())
    return worse_than(last(losses), 5)
