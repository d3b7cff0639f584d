"""Steps of a wrong size: the rate, its schedule, the clip, the decay, accumulation."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, StepLR

from zoo.loops import accuracy, classes, fit, last, squares, tokens
from zoo.material import digits, holdout, language, pairs, passages, table, teacher
from zoo.models import GPT, LSTM, cnn, mlp
from zoo.registry import Check, Watch, below, fault, worse_than

TOO_HIGH = {"learning_rate_too_high", "diverging"}
OFF = {"learning_rate_zero"}
TOO_LOW = {"learning_rate_too_low"}


@fault("learning rate zero, MLP", OFF, wrong={"vanishing", "plateau"})
def zero_rate(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    fit(watch, model, Adam(model.parameters(), lr=0.0), pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.4)


@fault("learning rate zero, GPT", OFF, wrong={"vanishing"})
def zero_rate_gpt(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 33, seed=seed)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    schedule = LambdaLR(optimizer, lambda step: step // 1000)  # a whole number below the first thousand steps
    batches = pairs(text[:, :-1], text[:, 1:], steps=120, size=16, seed=seed)
    losses = fit(watch, model, optimizer, batches, tokens, schedule=schedule, holdout=language())
    return worse_than(last(losses), 3)


@fault("learning rate zero from step 100, CNN", OFF, since=101, wrong={"plateau"})
def zero_rate_later(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    schedule = LambdaLR(optimizer, lambda step: float(step < 100))
    batches = pairs(*data[:2], steps=220, size=16, seed=seed)
    fit(watch, model, optimizer, batches, schedule=schedule, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.93)


@fault("learning rate of 1e-7, MLP", TOO_LOW)
def tiny_rate(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    fit(watch, model, Adam(model.parameters(), lr=1e-7), pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.4)


@fault("learning rate of 1e-7, LSTM", TOO_LOW)
def tiny_rate_lstm(watch: Watch, seed: int) -> Check:
    model, text = LSTM(), passages(300, 25, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=120, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1e-7), batches, tokens, holdout=language(length=24))
    return worse_than(last(losses), 3)


@fault("schedule by epochs stepped by batches, CNN", {*TOO_LOW, *OFF, "schedule_twice"}, since=31)
def schedule_of_epochs(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = Adam(model.parameters(), lr=1e-3)
    schedule = StepLR(optimizer, step_size=10, gamma=0.1)  # every ten epochs was meant
    batches = pairs(*data[:2], steps=200, seed=seed)
    fit(watch, model, optimizer, batches, schedule=schedule, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.7)


@fault("warm-up that never ends, MLP", TOO_LOW)
def endless_warm_up(watch: Watch, seed: int) -> Check:
    data, model = table("wine"), mlp(13, 32, 3)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    schedule = LambdaLR(optimizer, lambda step: (step + 1) / 1_000_000)
    batches = pairs(*data[:2], steps=200, size=20, seed=seed)
    losses = fit(watch, model, optimizer, batches, schedule=schedule, holdout=holdout(data))
    return worse_than(last(losses), 0.8)


@fault("learning rate of 1.0, GPT", TOO_HIGH)
def high_rate_gpt(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 33, seed=seed)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1.0), batches, tokens, holdout=language())
    return worse_than(last(losses), 2.9)


@fault("learning rate too high, SGD", TOO_HIGH)
def high_rate_sgd(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 64, 10)
    batches = pairs(*data[:2], steps=150, seed=seed)
    losses = fit(watch, model, SGD(model.parameters(), lr=5.0), batches, holdout=holdout(data))
    return worse_than(last(losses), 1.5)


@fault("learning rate too high, regression", TOO_HIGH)
def high_rate_regression(watch: Watch, seed: int) -> Check:
    data, model = teacher(seed=seed), mlp(16, 64, 1)
    batches = pairs(*data[:2], steps=120, seed=seed)
    watching = {"holdout": holdout(data), "loss": nn.functional.mse_loss}
    losses = fit(watch, model, SGD(model.parameters(), lr=2.0), batches, squares, **watching)
    return worse_than(last(losses), 0.9)


@fault("momentum of 0.999, CNN", TOO_HIGH)
def high_momentum(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.999)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 1.5)


@fault("rate of one group too high, GPT", TOO_HIGH)
def high_rate_of_a_group(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 33, seed=seed)
    head = {id(p) for p in model.head.parameters()}
    others = [p for p in model.parameters() if id(p) not in head]
    optimizer = AdamW([{"params": others}, {"params": model.head.parameters(), "lr": 3.0}], lr=1e-3)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    losses = fit(watch, model, optimizer, batches, tokens, holdout=language())
    return worse_than(last(losses), 2.9)


@fault("clipped to a thousandth, MLP", {"clipped_hard"}, wrong={"vanishing"})
def clipped(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    batches = pairs(*data[:2], steps=200, seed=seed)
    fit(watch, model, SGD(model.parameters(), lr=0.1), batches, clip=1e-3, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.5)


@fault("clipped to a thousandth, CNN", {"clipped_hard"}, wrong={"vanishing"})
def clipped_cnn(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), clip=1e-3, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.6)


@fault("weight decay of 20, MLP", {"weight_decay_too_strong"}, wrong={"learning_rate_too_high", "vanishing"})
def decayed(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=20)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 0.6)


@fault("weight decay of 20, GPT", {"weight_decay_too_strong"}, wrong={"learning_rate_too_high", "vanishing"})
def decayed_gpt(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 33, seed=seed)
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=20)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    losses = fit(watch, model, optimizer, batches, tokens, holdout=language())
    return worse_than(last(losses), 2.7)


@fault("weight decay of 0.5 in SGD, CNN", {"weight_decay_too_strong"}, wrong={"learning_rate_too_high"})
def decayed_sgd(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.5)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 2.0)


@fault("schedule stepped twice, MLP", {"schedule_twice"})
def twice(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = SGD(model.parameters(), lr=0.05)
    schedule = LinearLR(optimizer, 1.0, 0.0, total_iters=200)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=200, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            w.log(loss=loss)
            schedule.step()
    return None


@fault("schedule stepped twice, GPT", {"schedule_twice"})
def twice_gpt(watch: Watch, seed: int) -> Check | None:
    model, text = GPT(), passages(400, 33, seed=seed)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    schedule = CosineAnnealingLR(optimizer, T_max=150)
    with watch(model, optimizer, holdout=language()) as w:
        for x, y in pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed):
            loss = tokens(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            schedule.step()
            w.log(loss=loss)
    return None


def accumulated(watch: Watch, seed: int, *, parts: int, scale: float, rate: float) -> list[float]:
    data, model = digits(), mlp(64, 48, 10)
    optimizer, taken = SGD(model.parameters(), lr=rate), []
    batches = pairs(*data[:2], steps=150 * parts, size=16, seed=seed)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(batches, 1):
            loss = classes(model(x), y)
            (loss * scale).backward()
            w.log(loss=loss)
            taken.append(loss.item())
            if number % parts == 0:
                optimizer.step()
                optimizer.zero_grad()
    return taken


@fault("accumulation scaled twice, MLP", TOO_LOW, wrong={"vanishing"})
def scaled_twice(watch: Watch, seed: int) -> Check:
    return worse_than(last(accumulated(watch, seed, parts=32, scale=1 / 32**2, rate=0.1)), 2.0)


@fault("accumulation not divided, MLP", {*TOO_HIGH, "summed_loss"})
def not_divided(watch: Watch, seed: int) -> Check:
    return worse_than(last(accumulated(watch, seed, parts=16, scale=1.0, rate=0.5)), 1.0)


@fault("Adam's epsilon of 1, MLP", TOO_LOW)
def epsilon(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = Adam(model.parameters(), lr=1e-3, eps=1.0)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 2.1)


@fault("updates lost in bfloat16, MLP", {*TOO_LOW, "frozen", "updates_absorbed"})
def rounded_away(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10).bfloat16()
    data = (data[0].bfloat16(), data[1], data[2].bfloat16(), data[3])
    optimizer = SGD(model.parameters(), lr=1e-4)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    assert math.isfinite(last(losses))
    assert model[0].weight.dtype == torch.bfloat16
    return worse_than(last(losses), 2.2)
