"""Faults of the fourth blind set: steps, rates and optimizers of one's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR

from zoo.loops import accuracy, fit, last, tokens
from zoo.material import digits, language, pairs, passages
from zoo.models import LSTM, cnn, mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.fourth_material import TOO_HIGH, kept, told_first, trades, which_first
from zoo.unseen.third_material import reviews, tones
from zoo.unseen.third_models import Judge, Listener, Reader


class Orthogonal(Optimizer):
    """Momentum whose matrices are made orthogonal, with the norm left out that the iteration asks for."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                memory = self.state[p].setdefault("memory", torch.zeros_like(p))
                memory.mul_(0.95).add_(p.grad)
                turned = memory
                if p.ndim == 2:
                    for _ in range(5):
                        square = turned @ turned.T
                        turned = 3.4445 * turned + (-4.775 * square + 2.0315 * square @ square) @ turned
                p.add_(turned, alpha=-group["lr"])


@fault("orthogonal steps without the norm first, own optimizer", {*TOO_HIGH, "loss_spike"}, since=None)
def without_the_norm(watch: Watch, seed: int) -> Check:
    data, model = trades(seed), mlp(10, 48, 48, 4)
    fit(watch, model, Orthogonal(model.parameters(), 0.02), pairs(*data[:2], steps=150, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    with torch.no_grad():
        return worse_than(float(F.cross_entropy(model(data[2]), data[3])), 1.3)


@fault("RMSprop at the rate of SGD, transformer", {*TOO_HIGH, "dead_units"})
def at_sgds_rate(watch: Watch, seed: int) -> Check:
    data, model = which_first(seed), Judge(12, 2)
    fit(watch, model, RMSprop(model.parameters(), lr=0.1), pairs(*data[:2], steps=200, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.65)


@fault("a decay of one meant as none, Adagrad", {"learning_rate_too_low", "learning_rate_zero"}, since=None)
def decay_of_one(watch: Watch, seed: int) -> Check:
    """`lr_decay` is not a factor: the rate is divided by one and the number of the step."""
    model, text = LSTM(), passages(600, 33)
    optimizer = Adagrad(model.parameters(), lr=0.02, lr_decay=1)
    losses = fit(watch, model, optimizer, pairs(text[:, :-1], text[:, 1:], steps=200, size=16, seed=seed), tokens,
                 holdout=language())  # fmt: skip
    return above(last(losses), 2.6)


@fault("back to the worst checkpoint in place of the best, CNN", {"loss_spike", "state_reset"}, since=169)
def worst(watch: Watch, seed: int) -> Check:
    """The sign by which the best is known is turned: what is kept is the loss before the first step."""
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    best, taken = 0.0, copy.deepcopy(model.state_dict())
    with watch(model, optimizer, holdout=kept(data)) as w:
        for epoch in range(9):
            with torch.no_grad():
                score = float(F.cross_entropy(model(data[2]), data[3]))
            if score > best:
                best, taken = score, copy.deepcopy(model.state_dict())
            if epoch == 6:
                model.load_state_dict(taken)
                optimizer.param_groups[0]["lr"] /= 20
            for x, y in pairs(*data[:2], steps=28, size=49, seed=100 * seed + epoch):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.85)


@fault("the search for a rate left on, MLP", {*TOO_HIGH, "loss_spike"}, since=None)
def search_left_on(watch: Watch, seed: int) -> Check:
    """The rate grows at every step, from 1e-4 to 30, and the training goes on with it."""
    data, model = trades(seed), mlp(10, 64, 64, 4)
    optimizer = SGD(model.parameters(), lr=1e-4, momentum=0.9)
    fit(watch, model, optimizer, pairs(*data[:2], steps=250, size=50, seed=seed),
        schedule=LambdaLR(optimizer, lambda step: 3e5 ** (step / 250)), holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)


class Plain(nn.Module):
    """A recurrent network of ReLUs that begins by keeping what it holds."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.rnn, self.head = nn.RNN(16, width, nonlinearity="relu", batch_first=True), nn.Linear(width, 4)
        nn.init.eye_(self.rnn.weight_hh_l0)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0][:, -1])


@fault("parameters used up before they are clipped, RNN", {*TOO_HIGH, "loss_spike"}, since=None)
def used_up(watch: Watch, seed: int) -> Check:
    """`model.parameters()` was kept and counted: nothing of it is left for the clip."""
    data, model = told_first(seed, length=16), Plain()
    parameters = model.parameters()
    size = sum(p.numel() for p in parameters)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=250, size=32, seed=seed):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.3)
            optimizer.step()
            w.log(loss=loss, weights=size)
    with torch.no_grad():
        return worse_than(float(F.cross_entropy(model(data[2]), data[3])), 1.3)


@fault("the warm-up made anew at every epoch, text", {"learning_rate_too_low"}, since=None)
def made_anew(watch: Watch, seed: int) -> Check:
    """The schedule stands inside the loop over epochs: of 400 steps of warm-up it never takes more than 20."""
    data, model = reviews(seed), Reader(200, 2)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for epoch in range(10):
            schedule = LambdaLR(optimizer, lambda step: min(1.0, step / 400))
            for x, y in pairs(*data[:2], steps=20, size=45, seed=100 * seed + epoch):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.65)


@fault("the running figures of another source left in, convolutions over time",
       {"eval_mode_training", "stale_batch_norm"})  # fmt: skip
def other_source(watch: Watch, seed: int) -> Check:
    """The norms are put into eval mode to keep their figures, and these are of recordings a hundred times as loud."""
    data, model = tones(seed), Listener()
    with torch.no_grad():
        for _ in range(60):
            model(100 * data[0][:64])
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()
    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), pairs(*data[:2], steps=200, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)
