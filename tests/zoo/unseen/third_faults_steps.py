"""Faults of the third blind set: steps, rates, calls of the loop, and what is done at a resume."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from zoo.loops import accuracy, classes, fit
from zoo.material import digits, pairs
from zoo.models import cnn, mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.second_models import ResNet
from zoo.unseen.third_material import kept, reviews, tones, visits
from zoo.unseen.third_models import Reader

TOO_HIGH = {"diverging", "exploding", "learning_rate_too_high", "nonfinite"}


@fault("a schedule for losses is given the accuracy, CNN", {"learning_rate_too_low", "learning_rate_zero"}, since=None)
def given_the_accuracy(watch: Watch, seed: int) -> Check:
    """The accuracy rises, which counts as getting worse: the rate is cut after every look."""
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = ReduceLROnPlateau(optimizer, factor=0.2, patience=0)
    loader = DataLoader(TensorDataset(*data[:2]), 64, shuffle=True)
    w = watch(model, optimizer, holdout=TensorDataset(*data[2:]))
    for epoch in range(1, 13):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            w.log(loss=loss, epoch=epoch)
        schedule.step(accuracy(model, *data[2:]))
    w.close()
    return below(accuracy(model, *data[2:]), 0.9)


@fault("the start of a fold is restored at every epoch, MLP", {"loss_spike", "state_reset"}, since=25)
def restored(watch: Watch, seed: int) -> Check:
    """What belongs before the epochs stands inside: weights and Adam's memory are those of the start again."""
    data, model = digits(), mlp(64, 64, 64, 10)
    optimizer = Adam(model.parameters(), lr=5e-4)
    start = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    with watch(model, optimizer, holdout=kept(data)) as w:
        for epoch in range(10):
            model.load_state_dict(start[0])
            optimizer.load_state_dict(start[1])
            for x, y in pairs(*data[:2], steps=24, size=56, seed=10 * seed + epoch):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.7)


@fault("Adam's usual rate given to SGD, residual network", {"learning_rate_too_low"}, since=None)
def for_sgd(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), ResNet(1, 10, 8)
    fit(watch, model, SGD(model.parameters(), lr=1e-4), pairs(*data[:2], steps=220, size=48, seed=seed), classes,
        holdout=DataLoader(kept(data), 64))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(48, n) for n in (3, 3, 3))

    def forward(self, x: Tensor) -> list[Tensor]:
        h = self.body(x)
        return [head(h) for head in self.heads]


@fault("gradients of all tasks but the last are cleared, three heads",
       {"backward_without_step", "gradients_cleared_early", "no_gradient", "unreached_outputs"})  # fmt: skip
def but_the_last(watch: Watch, seed: int) -> Check:
    """zero_grad stands in the loop over tasks, and step behind it."""
    data, model = visits(seed), Tasks()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=220, size=40, seed=seed):
            total = 0.0
            for task in range(3):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x)[task], (y + task) % 3)
                loss.backward()
                total += loss.item()
            optimizer.step()
            w.log(loss=total)
    with torch.no_grad():
        return below(float((model(data[2])[0].argmax(1) == data[3]).double().mean()), 0.7)


@fault("the loss is scaled and nothing scales back, convolutions over time", TOO_HIGH)
def scaled(watch: Watch, seed: int) -> Check:
    """The scaler went and its factor of 1,024 stayed."""
    data, model = tones(seed), nn.Sequential(nn.Conv1d(1, 16, 7), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(),
                                             nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))  # fmt: skip
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=220, size=32, seed=seed):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            (loss * 1024).backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.6)


@fault("Adam's epsilon rounds to zero in float16, MLP", {"exploding", "nonfinite"}, since=None)
def rounds_to_zero(watch: Watch, seed: int) -> Check:
    """A weight whose gradient is small has a second moment of zero: its step is a number over nothing."""
    data, model = digits(), mlp(64, 48, 48, 10).half()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=150, size=50, seed=seed):
            loss = F.cross_entropy(model(x.half()).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return worse_than(float(loss.detach()), 1.5)


class Transfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(mlp(64, 64, 64), nn.ReLU()), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


@fault("rates of backbone and head exchanged, fine-tuning", {"learning_rate_too_low", "rate_in_wrong_group",
       "slow_head"}, where="head")  # fmt: skip
def exchanged(watch: Watch, seed: int) -> Check:
    """The new head has the rate for what was learned before, 1e-6, and the backbone the head's."""
    data, model = digits(), Transfer()
    first, low, held = Adam(model.parameters(), lr=3e-3), data[1] < 5, data[3] >= 5
    for x, y in pairs(data[0][low], data[1][low], steps=120, size=50, seed=seed):
        first.zero_grad()
        F.cross_entropy(model(x), y).backward()
        first.step()
    model.head = nn.Linear(64, 5)
    nn.init.normal_(model.head.weight, std=0.002)
    nn.init.zeros_(model.head.bias)
    optimizer = SGD([{"params": model.backbone.parameters(), "lr": 0.05}, {"params": model.head.parameters(),
                    "lr": 1e-6}], momentum=0.9)  # fmt: skip
    with watch(model, optimizer, holdout=[(data[2][held], data[3][held] - 5)]) as w:
        for x, y in pairs(data[0][~low], data[1][~low] - 5, steps=60, size=40, seed=seed):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, data[2][held], data[3][held] - 5), 0.7)


@fault("the evaluation takes steps too, visitors", {"holdout_overlap"}, since=None)
def evaluation_steps(watch: Watch, seed: int) -> Check:
    """Copied from the training loop with its last three lines: the holdout is better than rows nobody saw."""
    data, model = visits(seed, 1200, flipped=0.4), mlp(12, 128, 128, 3)
    seen, unseen = (data[2][:150], data[3][:150]), (data[2][150:], data[3][150:])
    optimizer = AdamW(model.parameters(), lr=2e-3)
    with watch(model, optimizer, holdout=TensorDataset(*seen)) as w:
        for epoch in range(25):
            for rows in (data[:2], seen):
                for x, y in pairs(*rows, steps=len(rows[0]) // 50, size=50, seed=100 * seed + epoch):
                    loss = F.cross_entropy(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    w.log(loss=loss)
    return above(accuracy(model, *seen) - accuracy(model, *unseen), 0.1)


@fault("a schedule that gives the rate itself, GRU", {"learning_rate_too_low", "learning_rate_zero"}, since=None)
def rate_itself(watch: Watch, seed: int) -> Check:
    """LambdaLR multiplies what it is given by the optimizer's rate: 1e-3 becomes 1e-6."""
    data, model = reviews(seed), Reader(200, 2)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=200, size=32, seed=seed),
        schedule=LambdaLR(optimizer, lambda step: 1e-3 * (1 - step / 1000)), holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.65)


@fault("resumed with the rate of another configuration, CNN", {*TOO_HIGH, "loss_spike"}, since=121)
def other_rate(watch: Watch, seed: int) -> Check:
    """The second half was started from the checkpoint with a rate that is written over: 3 in place of 0.03."""
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.03, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for step, (x, y) in enumerate(pairs(*data[:2], steps=240, size=48, seed=seed)):
            if step == 120:
                for group in optimizer.param_groups:
                    group["lr"] = 3.0
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.6)
