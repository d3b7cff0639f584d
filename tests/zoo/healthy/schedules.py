"""Rates, schedules, optimizers, batch sizes, precision: sound ways to take steps."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
)

from zoo.loops import accuracy, classes, fit, last, tokens
from zoo.material import digits, holdout, language, pairs, passages
from zoo.models import GPT, cnn, mlp
from zoo.registry import Check, Watch, above, below, healthy


@healthy("warm-up and cosine, GPT")
def warm_up(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(1500, 33, seed=seed)
    optimizer = AdamW(model.parameters(), lr=8e-3)
    parts = [LinearLR(optimizer, 0.01, 1.0, 40), CosineAnnealingLR(optimizer, 210)]
    schedule = SequentialLR(optimizer, parts, [40])
    batches = pairs(text[:, :-1], text[:, 1:], steps=250, size=16, seed=seed)
    losses = fit(watch, model, optimizer, batches, tokens, clip=1.0, schedule=schedule, holdout=language())
    return below(last(losses), 2.4)


def scheduled(watch: Watch, seed: int, optimizer_of: Any, schedule_of: Any, *, steps: int = 250) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    optimizer = optimizer_of(model.parameters())
    batches = pairs(*data[:2], steps=steps, seed=seed)
    fit(watch, model, optimizer, batches, schedule=schedule_of(optimizer), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("one cycle, MLP")
def one_cycle(watch: Watch, seed: int) -> Check:
    return scheduled(
        watch, seed, lambda p: SGD(p, lr=0.1, momentum=0.9), lambda o: OneCycleLR(o, max_lr=0.3, total_steps=251)
    )


@healthy("cyclic rates, MLP")
def cyclic(watch: Watch, seed: int) -> Check:
    return scheduled(
        watch, seed, lambda p: SGD(p, lr=0.01, momentum=0.9), lambda o: CyclicLR(o, 0.005, 0.1, step_size_up=25)
    )


@healthy("cosine with warm restarts, MLP")
def restarts(watch: Watch, seed: int) -> Check:
    return scheduled(watch, seed, lambda p: Adam(p, lr=5e-3), lambda o: CosineAnnealingWarmRestarts(o, 50))


@healthy("linear decay to zero, MLP")
def to_zero(watch: Watch, seed: int) -> Check:
    return scheduled(watch, seed, lambda p: Adam(p, lr=5e-3), lambda o: LinearLR(o, 1.0, 0.0, total_iters=250))


class Lion(Optimizer):
    """Sign of the averaged gradient (Chen et al. 2023)."""

    def __init__(self, params: Iterable[Any], lr: float = 3e-4, decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(0.9 * average + 0.1 * p.grad), alpha=-group["lr"])
                average.lerp_(p.grad, 0.01)


class Muon(Optimizer):
    """Orthogonalised momentum for matrices, plain momentum for the rest (Jordan 2024)."""

    def __init__(self, params: Iterable[Any], lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                average.mul_(0.95).add_(p.grad)
                p.add_(orthogonal(average) if p.ndim == 2 else average, alpha=-group["lr"])


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Newton–Schulz, five rounds."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        product = x @ x.T
        x = 3.4445 * x + (-4.7750 * product + 2.0315 * product @ product) @ x
    return x * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5


@healthy("sign of the gradient, Lion")
def lion(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    fit(watch, model, Lion(model.parameters(), lr=1e-3), pairs(*data[:2], steps=250, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("orthogonalised momentum, Muon")
def muon(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 64, 10)
    fit(watch, model, Muon(model.parameters()), pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("moderate weight decay, CNN")
def decay(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn(norm=True)
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    fit(watch, model, optimizer, pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.93)


@healthy("tiny batches, MLP")
def tiny_batches(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    batches = pairs(*data[:2], steps=1500, size=2, seed=seed)
    fit(watch, model, SGD(model.parameters(), lr=0.02), batches, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("whole data set a batch, MLP")
def large_batches(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    batches = pairs(*data[:2], steps=150, size=1397, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=1e-2), batches, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("gradient accumulation, MLP")
def accumulation(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=800, size=16, seed=seed), 1):
            loss = classes(model(x), y)
            (loss / 4).backward()
            w.log(loss=loss)
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("clipping at every step, GPT")
def clipped(watch: Watch, seed: int) -> Check:
    """With Adam, the scale of the gradient cancels: a clip that always acts is common and does no harm."""
    model, text = GPT(), passages(1500, 33, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=250, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=5e-3), batches, tokens, clip=0.3, holdout=language())
    return below(last(losses), 2.4)


@healthy("bfloat16 autocast, CNN")
def autocast(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn(norm=True)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            with torch.autocast("cpu", torch.bfloat16):
                loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("loss scaled and unscaled, GradScaler")
def scaler(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    optimizer, scaler = Adam(model.parameters(), lr=3e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=200, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("average of the weights kept, MLP")
def average(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    kept = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95))
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=250, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.update_parameters(model)
            w.log(loss=loss)
    return above(accuracy(copy.deepcopy(kept.module), *data[2:]), 0.9)


@healthy("stopped early, MLP")
def early(watch: Watch, seed: int) -> Check:
    """At the first of the evaluations that is no better than the one before."""
    data, model = digits(), mlp(64, 64, 10)
    optimizer, best = Adam(model.parameters(), lr=5e-3), float("inf")
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=300, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 40 == 0:
                with torch.no_grad():
                    held = float(classes(model(data[2]), data[3]))
                if held > best:
                    break
                best = held
    return above(accuracy(model, *data[2:]), 0.9)
