"""Wrong labels, duplicates, and too few examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from zoo.loops import accuracy, classes, explained, fit, last, squares, tokens
from zoo.material import digits, few, holdout, language, pairs, passages, rows_of, teacher
from zoo.models import GPT, cnn, mlp
from zoo.registry import Check, Watch, above, below, fault

NOISE = {"label_noise"}


def flipped(y: Tensor, share: float, seed: int, *, to_next: bool = False) -> Tensor:
    """A share of the labels replaced by another class, or by the next one."""
    g = torch.Generator().manual_seed(seed)
    others = torch.ones_like(y) if to_next else torch.randint(1, 10, y.shape, generator=g)
    return torch.where(torch.rand(y.shape, generator=g) < share, (y + others) % 10, y)


def with_ids(
    watch: Watch, model: nn.Module, x: Tensor, y: Tensor, seed: int, *, images: bool = False, steps: int = 280
) -> Check:
    """The loop hands over which examples are in the batch."""
    optimizer = Adam(model.parameters(), lr=2e-3)
    data = digits(images=images)
    with watch(model, optimizer, holdout=holdout(data), ledger=True) as w:
        for rows in rows_of(len(x), steps=steps, seed=seed):
            logits = model(x[rows])
            loss = classes(logits, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            w.examples(rows, logits, y[rows])
    return above(accuracy(model, *data[2:]), 0.6)


@fault("20 % of labels wrong, MLP", NOISE, since=None, wrong={"overfitting"})
def noise(watch: Watch, seed: int) -> Check:
    x, y = digits()[:2]
    return with_ids(watch, mlp(64, 64, 10), x, flipped(y, 0.2, seed), seed)


@fault("10 % of labels wrong, CNN", NOISE, since=None, wrong={"overfitting"})
def noise_cnn(watch: Watch, seed: int) -> Check:
    x, y = digits(images=True)[:2]
    return with_ids(watch, cnn(), x, flipped(y, 0.1, seed), seed, images=True)


@fault("20 % of labels moved to the next class, MLP", NOISE, since=None, wrong={"overfitting"})
def noise_next(watch: Watch, seed: int) -> Check:
    x, y = digits()[:2]
    return with_ids(watch, mlp(64, 64, 10), x, flipped(y, 0.2, seed, to_next=True), seed)


@fault("30 examples many times over, MLP", {"duplicated_data"})
def duplicated(watch: Watch, seed: int) -> Check:
    """The data set was joined with itself until it was large enough."""
    data, model = digits(), mlp(64, 48, 10)
    x, y = few(*data[:2], 3)
    x, y = x.repeat(40, 1), y.repeat(40)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(x, y, steps=200, seed=seed), holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.87)


@fault("20 passages many times over, GPT", {"duplicated_data"})
def duplicated_gpt(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(20, 33, seed=seed).repeat(30, 1)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=32, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=5e-3), batches, tokens, holdout=language())
    return below(last(losses), 2)


@fault("the same batch at every step, CNN", {"duplicated_data", "overfitting"}, since=None)
def same_batch(watch: Watch, seed: int) -> Check:
    """`next(iter(loader))` inside the loop, of a loader that does not shuffle."""
    data, model = digits(images=True), cnn()
    batches = [few(*data[:2], 5)] * 150
    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.87)


@fault("few examples and a wide network, MLP", {"overfitting"}, since=None)
def few_digits(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 256, 256, 10)
    batches = pairs(*few(*data[:2], 2), steps=250, size=5, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.87)


@fault("few examples and a wide network, regression", {"overfitting"}, since=None)
def few_numbers(watch: Watch, seed: int) -> Check:
    data, model = teacher(noise=0.7, seed=seed), mlp(16, 256, 256, 1)
    batches = pairs(data[0][:30], data[1][:30], steps=250, size=10, seed=seed)
    watching = {"holdout": holdout(data), "loss": nn.functional.mse_loss}
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, squares, **watching)
    return below(explained(model, *data[2:]), 0.4)


@fault("few examples and many steps, GPT", {"overfitting"}, since=None)
def few_passages(watch: Watch, seed: int) -> Check:
    model, text = GPT(width=64), passages(50, 33, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=200, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1e-2), batches, tokens, holdout=language())
    return below(last(losses), 1)
