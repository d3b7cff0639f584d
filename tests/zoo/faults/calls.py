"""Calls in the wrong order, at the wrong place, or not at all."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from zoo.loops import accuracy, classes, last, tokens
from zoo.material import digits, holdout, language, pairs, passages, table
from zoo.models import GPT, cnn, mlp
from zoo.registry import Check, Watch, below, fault, worse_than

UNCLEARED = {"gradients_not_cleared"}


@fault("zero_grad forgotten, MLP", UNCLEARED, since=2, wrong={"exploding", "learning_rate_too_high"})
def uncleared(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer, losses = SGD(model.parameters(), lr=0.1), []
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            loss = classes(model(x), y)
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(last(losses), 0.6)


@fault("zero_grad forgotten, GPT", UNCLEARED, since=2, wrong={"exploding", "learning_rate_too_high"})
def uncleared_gpt(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 33, seed=seed)
    optimizer, losses = AdamW(model.parameters(), lr=3e-3), []
    with watch(model, optimizer, holdout=language()) as w:
        for x, y in pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed):
            loss = tokens(model(x), y)
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(last(losses), 2.4)


@fault("zero_grad on another optimizer, CNN", UNCLEARED, since=2, wrong={"exploding", "learning_rate_too_high"})
def cleared_elsewhere(watch: Watch, seed: int) -> Check:
    """The optimizer of the frozen part is cleared instead."""
    data, model, other = digits(images=True), cnn(), nn.Linear(4, 4)
    optimizer, wrong, losses = SGD(model.parameters(), lr=0.05), SGD(other.parameters(), lr=0.05), []
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            wrong.zero_grad()
            loss = classes(model(x), y)
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(last(losses), 0.6)


@fault("zero_grad between backward and step, MLP", {"gradients_cleared_early"}, wrong={"vanishing", "frozen"})
def cleared_early(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            loss = classes(model(x), y)
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.5)


@fault("gradients set to zero between backward and step, CNN", {"gradients_cleared_early"}, wrong={"vanishing"})
def zeroed_early(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            loss = classes(model(x), y)
            loss.backward()
            model.zero_grad(set_to_none=False)
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.5)


@fault("two steps a backward, MLP", {"steps_without_backward"})
def two_steps(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=120, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            optimizer.step()
    return None


@fault("step outside the inner loop, MLP", {"backward_without_step"})
def step_outside(watch: Watch, seed: int) -> Check:
    """Of eight batches, seven are cleared away before the step."""
    data, model = digits(), mlp(64, 48, 10)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=480, size=16, seed=seed), 1):
            optimizer.zero_grad()
            loss = classes(model(x), y)
            loss.backward()
            w.log(loss=loss)
            if number % 8 == 0:
                optimizer.step()
    return below(accuracy(model, *data[2:]), 0.85)


@fault("loss taken out of the graph, MLP", {"steps_without_backward", "frozen", "not_optimised", "no_gradient"})
def rewrapped(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for x, y in pairs(*data[:2], steps=150, seed=seed):
            loss = torch.tensor(classes(model(x), y).item(), requires_grad=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.5)


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return classes(model(x), y).item()


@fault("evaluation with dropout on, MLP", {"dropout_in_evaluation"}, since=20)
def noisy_evaluation(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), mlp(64, 64, 64, 10, dropout=0.5)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=200, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 20 == 0:
                evaluate(model, *data[2:])
    return None


@fault("evaluation with batch norm in training mode, CNN", {"dropout_in_evaluation"}, since=25)
def normed_evaluation(watch: Watch, seed: int) -> Check | None:
    data, model = digits(images=True), cnn(norm=True)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=150, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 25 == 0:
                evaluate(model, *data[2:])
    return None


def never_back(watch: Watch, model: nn.Module, seed: int, *, images: bool) -> None:
    """After the first evaluation, the model stays in eval mode."""
    data = digits(images=images)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=200, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 20 == 0:
                model.eval()
                evaluate(model, *data[2:])


@fault("training in eval mode, MLP", {"eval_mode_training"}, since=21)
def eval_mode(watch: Watch, seed: int) -> Check | None:
    never_back(watch, mlp(64, 64, 64, 10, dropout=0.4), seed, images=False)
    return None


@fault("training in eval mode, CNN", {"eval_mode_training"}, since=21, wrong={"overfitting"})
def eval_mode_cnn(watch: Watch, seed: int) -> Check | None:
    never_back(watch, cnn(norm=True), seed, images=True)
    return None


@fault("optimizer state cleared every epoch, MLP", {"state_reset"}, since=28)
def cleared_state(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for _ in range(8):
            for x, y in pairs(*data[:2], steps=27, seed=seed):
                loss = classes(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
            optimizer.state = defaultdict(dict)
            w.end_epoch()
    return None


@fault("optimizer rebuilt on resume, MLP", {"state_reset"}, since=101)
def rebuilt(watch: Watch, seed: int) -> Check | None:
    """The checkpoint holds the weights alone."""
    data, model = table("breast_cancer"), mlp(30, 32, 2)
    for part in range(2):
        optimizer = Adam(model.parameters(), lr=1e-2)
        with watch(model, optimizer, holdout=holdout(data), resume=bool(part)) as w:
            for x, y in pairs(*data[:2], steps=100, size=32, seed=seed + part):
                loss = classes(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
            w.save_state()
    return None
