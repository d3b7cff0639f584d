"""Weights from which training cannot start: dead, too small for the depth, too large."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import SGD, Adam, AdamW

from zoo.loops import fit, last, squares, tokens
from zoo.material import digits, holdout, language, pairs, passages
from zoo.models import GPT, RowReader, cnn, mlp
from zoo.registry import Check, Watch, fault, worse_than


@fault("deep sigmoid network, MLP", {"vanishing"}, wrong={"learning_rate_too_low"})
def vanishing(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, *[32] * 10, 10, activation=nn.Sigmoid)
    batches = pairs(*data[:2], steps=200, seed=seed)
    losses = fit(watch, model, SGD(model.parameters(), lr=0.1), batches, holdout=holdout(data))
    return worse_than(last(losses), 2.2)


@fault("deep tanh network with small weights, autoencoder", {"vanishing"})
def vanishing_autoencoder(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, *[32] * 8, 64, activation=nn.Tanh)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    x, held = data[0], data[2]
    batches = pairs(x, x, steps=200, seed=seed)
    watching = {"holdout": [(held[:200], held[:200])], "loss": nn.functional.mse_loss}
    losses = fit(watch, model, SGD(model.parameters(), lr=0.1), batches, squares, **watching)
    return worse_than(last(losses), 0.07)


@fault("dead ReLUs, MLP", {"dead_units"}, wrong={"vanishing"})
def dead(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 48, 10)
    nn.init.constant_(model[2].bias, -10.0)
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=200, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 2.0)


@fault("dead ReLUs, CNN", {"dead_units"}, wrong={"vanishing"})
def dead_cnn(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    nn.init.constant_(model[0].bias, -6.0)
    optimizer = SGD(model.parameters(), lr=0.05)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 2.0)


@fault("all weights zero, MLP", {"vanishing", "dead_units", "frozen"})
def all_zero(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 48, 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    losses = fit(
        watch, model, Adam(model.parameters(), lr=1e-3), pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data)
    )
    return worse_than(last(losses), 2.0)


WILD = {"exploding_initialisation"}


@fault("weights drawn too large, MLP", WILD, wrong={"learning_rate_too_low"})
def wild(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 64, 64, 10)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)  # a deviation of 1, whatever the width
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 5)


@fault("weights drawn too large, CNN", WILD)
def wild_cnn(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=2.0)
    optimizer = SGD(model.parameters(), lr=0.01)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 2.0)


@fault("weights drawn too large, GPT", WILD)
def wild_gpt(watch: Watch, seed: int) -> Check:
    model, text = GPT(), passages(400, 33, seed=seed)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=3.0)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    losses = fit(watch, model, AdamW(model.parameters(), lr=1e-3), batches, tokens, holdout=language())
    return worse_than(last(losses), 5)


@fault("recurrent weights above one, RNN", {"exploding", *WILD})
def exploding(watch: Watch, seed: int) -> Check:
    """Linear in its state, as a ReLU cell is: gradients grow with every row that is read."""
    data, model = digits(), RowReader(lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k))
    nn.init.normal_(model.rnn.weight_hh_l0, std=4 / math.sqrt(48))
    optimizer = SGD(model.parameters(), lr=0.02)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return worse_than(last(losses), 1.5)
