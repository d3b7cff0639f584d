"""Data, rates and losses that change or are mixed up while all else is sound."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import OneCycleLR

from zoo.loops import accuracy, classes, explained, fit, squares
from zoo.material import digits, pairs, table
from zoo.models import cnn, mlp
from zoo.registry import Check, Watch, above, below, fault


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@fault("normalisation dropped after a resume, MLP", {"inputs_out_of_range", "unscaled_inputs"}, since=151)
def not_normalised(watch: Watch, seed: int) -> Check:
    """From step 150 on rows come as they are in the file, 0 to 255."""
    data, model = digits(), mlp(64, 48, 10)
    optimizer, taken = SGD(model.parameters(), lr=0.1, momentum=0.9), []
    with watch(model, optimizer, holdout=[(data[2], data[3])]) as w:
        for step, (x, y) in enumerate(pairs(*data[:2], steps=300, size=48, seed=seed)):
            loss = F.cross_entropy(model(x * 255 if step >= 150 else x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(float(loss.detach()))
    return above(max(taken[150:]), 2.0)


@fault("targets in another unit half way, regression", {"targets_out_of_range"}, since=161)
def other_unit(watch: Watch, seed: int) -> Check:
    """The second file has metres where the first has centimetres, upside down: a hundred times as much."""
    g = drawn(seed)
    x = torch.randn(1200, 8, generator=g)
    y = (x[:, :1] * x[:, 1:2] + x[:, 2:3].sin()) / 1.2
    model = mlp(8, 48, 1)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=[(x[1000:], y[1000:])], loss=F.mse_loss) as w:
        for step, (a, b) in enumerate(pairs(x[:1000], y[:1000], steps=320, size=40, seed=seed)):
            loss = F.mse_loss(model(a), 100 * b if step >= 160 else b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(explained(model, x[1000:], y[1000:]), 0.0)


@fault("one worker of five does not scale, CNN", {"inputs_out_of_range", "unscaled_inputs"}, since=None)
def one_worker(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    which = torch.rand(300, generator=drawn(seed)) < 0.2
    with watch(model, optimizer, holdout=[(data[2], data[3])]) as w:
        for step, (x, y) in enumerate(pairs(*data[:2], steps=300, size=48, seed=seed)):
            loss = F.cross_entropy(model(x * 255 if which[step] else x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, data[2], data[3]), 0.8)


@fault("hinge of labels 0 and 1, wine", {"majority_guess", "targets_out_of_range", "zero_gradients"}, since=None)
def hinge(watch: Watch, seed: int) -> Check:
    data = table("wine")
    model = nn.Sequential(mlp(13, 24, 24, 1, activation=nn.Tanh), nn.Flatten(0))
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=32, seed=seed):
            loss = torch.relu(1 - (y == 1).float() * model(x)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float(((model(data[2]) > 0) == (data[3] == 1)).double().mean()), 0.85)


@fault("the rare class weighs a thousand, visitors", {"majority_guess"}, since=None)
def heavy_class(watch: Watch, seed: int) -> Check:
    """pos_weight was meant to be 10: all are said to be of the class of which one in ten is."""
    g = drawn(seed)
    x = torch.randn(1400, 10, generator=g)
    y = (x @ torch.randn(10, generator=g) / 3 + torch.randn(1400, generator=g) > 1.85).float()[:, None]
    model = mlp(10, 32, 1)
    optimizer, weight = AdamW(model.parameters(), lr=2e-3), torch.tensor(1000.0)
    with watch(model, optimizer) as w:
        for a, b in pairs(x[:1200], y[:1200], steps=250, size=40, seed=seed):
            loss = F.binary_cross_entropy_with_logits(model(a), b, pos_weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float((model(x[1200:]) > 0).double().mean()), 0.9)


@fault("one cycle for an epoch, six epochs, CNN", {"learning_rate_too_low", "learning_rate_zero"}, since=None)
def one_cycle(watch: Watch, seed: int) -> Check:
    """total_steps is that of one epoch; afterwards the loop no longer steps the schedule, and the rate stays low."""
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.01)
    schedule, steps = OneCycleLR(optimizer, max_lr=0.02, total_steps=40), 0
    with watch(model, optimizer, holdout=[(data[2], data[3])]) as w:
        for x, y in pairs(*data[:2], steps=240, size=40, seed=seed):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (steps := steps + 1) < 40:
                schedule.step()
            w.log(loss=loss)
    return below(accuracy(model, data[2], data[3]), 0.6)


@fault("a rate for Adam given to SGD, wide network", {"learning_rate_too_low"}, since=None)
def rate_for_adam(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 128, 128, 10)
    nn.init.normal_(model[-1].weight, std=0.3)
    fit(watch, model, SGD(model.parameters(), lr=1e-4), pairs(*data[:2], steps=240, size=48, seed=seed), classes,
        holdout=[(data[2], data[3])])  # fmt: skip
    return below(accuracy(model, data[2], data[3]), 0.6)


@fault("half of the classes first and the others after, MLP", {"sorted_data"}, since=151)
def in_parts(watch: Watch, seed: int) -> Check:
    """Two folders one after the other, each for many epochs."""
    data, model = digits(), mlp(64, 64, 10)
    optimizer = Adam(model.parameters(), lr=3e-3)
    low = data[1] < 5
    parts = [(data[0][chosen][:200], data[1][chosen][:200]) for chosen in (low, ~low)]
    with watch(model, optimizer, holdout=[(data[2], data[3])]) as w:
        for x, y in (row for part in parts for row in pairs(*part, steps=150, size=40, seed=seed)):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, data[2], data[3]), 0.7)


@fault("years as they are, regression", {"learning_rate_too_low", "targets_out_of_range"}, since=None)
def years(watch: Watch, seed: int) -> Check:
    """The year of a thing from what is known of it: around 1,950, and the last layer begins at 0."""
    g = drawn(seed)
    x = torch.randn(1000, 6, generator=g)
    y = 1950 + 30 * x[:, :1].tanh() + 10 * x[:, 1:2]
    model = mlp(6, 32, 32, 1)
    fit(watch, model, AdamW(model.parameters(), lr=1e-3), pairs(x[:800], y[:800], steps=250, size=40, seed=seed),
        squares, holdout=[(x[800:], y[800:])], loss=F.mse_loss)  # fmt: skip
    return below(explained(model, x[800:], y[800:]), 0.0)


class Pretrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.fc = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten()), nn.Linear(288, 10)
        nn.init.zeros_(self.fc.weight)
        nn.init.normal_(self.fc.weight, std=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


@fault("the head is frozen with the rest by name, CNN", {"frozen"}, since=None, where="fc")
def frozen_head(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), Pretrained()
    for name, tensor in model.named_parameters():
        tensor.requires_grad = "features" in name
    fit(watch, model, SGD([p for p in model.parameters() if p.requires_grad], lr=0.01),
        pairs(*data[:2], steps=160, size=40, seed=seed), classes, holdout=[(data[2], data[3])])  # fmt: skip
    return below(accuracy(model, data[2], data[3]), 0.6)


@fault("columns of the holdout in another order, table", {"holdout_differs"}, since=None)
def other_columns(watch: Watch, seed: int) -> Check:
    """Both are standardised, so that nothing is seen of it."""
    g = drawn(seed)
    x = torch.randn(1400, 16, generator=g)
    y = (x[:, :8] @ torch.randn(8, 3, generator=g)).argmax(1)
    held, model = x[1000:][:, torch.randperm(16, generator=g)], mlp(16, 64, 3)
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(x[:1000], y[:1000], steps=250, size=50, seed=seed),
        classes, holdout=[(held, y[1000:])])  # fmt: skip
    return below(accuracy(model, held, y[1000:]), 0.55)
