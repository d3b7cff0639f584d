"""Single batches that are bad, and steps that never come because of them."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from zoo.loops import classes, fit, last
from zoo.material import digits, holdout, pairs
from zoo.models import cnn, mlp
from zoo.registry import Check, Watch, above, fault, worse_than


def spoiled(watch: Watch, seed: int, at: int, spoil: float, model: nn.Module, *, images: bool) -> list[float]:
    """One batch has another scale."""
    data = digits(images=images)
    batches = ((x * spoil if n == at else x, y) for n, (x, y) in enumerate(pairs(*data[:2], steps=220, seed=seed), 1))
    return fit(watch, model, SGD(model.parameters(), lr=0.2), batches, clip=1.0, holdout=holdout(data))


@fault("one bad batch, MLP", {"bad_batch"}, since=148, wrong={"learning_rate_too_high", "diverging"})
def bad_batch(watch: Watch, seed: int) -> Check:
    losses = spoiled(watch, seed, 148, 200.0, mlp(64, 64, 10), images=False)
    return above(losses[147], 5 * losses[146])


@fault("one bad batch, CNN", {"bad_batch"}, since=131, wrong={"learning_rate_too_high", "diverging"})
def bad_batch_cnn(watch: Watch, seed: int) -> Check:
    losses = spoiled(watch, seed, 131, 100.0, cnn(), images=True)
    return above(losses[130], 5 * losses[129])


@fault("wrong labels in one batch, MLP", {"bad_batch", "loss_spike"}, since=160)
def bad_labels(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    batches = ((x, (y + 1) % 10 if n == 160 else y) for n, (x, y) in enumerate(pairs(*data[:2], steps=220), 1))
    losses = fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return above(losses[159], 5 * losses[158])


@fault("NaN in one batch, MLP", {"nonfinite", "bad_batch"}, since=121)
def nan_batch(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    batches = ((x * float("nan") if n == 121 else x, y) for n, (x, y) in enumerate(pairs(*data[:2], steps=150), 1))
    losses = fit(watch, model, Adam(model.parameters(), lr=1e-3), batches, holdout=holdout(data))
    return worse_than(last(losses), 10)


@fault("steps skipped at a norm that is not finite, MLP", {"skipped_steps", "nonfinite", "bad_batch"}, since=15)
def skipped(watch: Watch, seed: int) -> Check | None:
    """Every fifteenth batch has an infinite entry."""
    data, model = digits(), mlp(64, 48, 10)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=180, seed=seed), 1):
            if number % 15 == 0:
                x[0, 0] = float("inf")
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            w.log(loss=loss)
            if norm.isfinite():
                optimizer.step()
    return None


@fault("steps skipped by a scaler, MLP", {"skipped_steps", "nonfinite", "bad_batch"}, since=12)
def skipped_by_scaler(watch: Watch, seed: int) -> Check | None:
    """Every twelfth batch overflows; nothing says so, as the scaler only halves its scale."""
    data, model = digits(), mlp(64, 48, 10)
    optimizer, scaler = Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=180, seed=seed), 1):
            loss = classes(model(x * 1e38 if number % 12 == 0 else x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            w.log(loss=loss)
    return None


@fault("assertion between clip and step, MLP", {"nonfinite", "bad_batch", "skipped_steps"}, since=86)
def asserted(watch: Watch, seed: int) -> Check | None:
    """The run ends at its 86th batch, before the step: what was wrong with it is to be found in what is on disk."""
    data, model = digits(), mlp(64, 48, 10)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with contextlib.suppress(AssertionError), watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=120, seed=seed), 1):
            loss = classes(model(x / 0 if number == 86 else x), y)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            w.log(loss=loss)
            assert norm.isfinite(), "the gradient is not finite"
            optimizer.step()
    return None


@fault("square root at zero, embedding distances", {"nonfinite"})
def root_at_zero(watch: Watch, seed: int) -> Check | None:
    """The distance of an embedding to itself has no gradient: NaN from the first step."""
    data, model = digits(), mlp(64, 48, 8)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=60, seed=seed):
            code = model(x)
            distance = (code[:, None] - code[None]).square().sum(2).sqrt()
            same = (y[:, None] == y[None]).float()
            loss = (same * distance + (1 - same) * F.relu(1 - distance)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return None
