"""Parts of the model that do not train: left out, frozen, cut off, not reached."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from zoo.loops import accuracy, classes, fit, squares, tokens
from zoo.material import digits, holdout, language, pairs, passages, table, teacher
from zoo.models import GPT, cnn, hf_vit, mlp
from zoo.registry import Check, Watch, below, fault

STILL = {"frozen", "not_optimised", "not_moving"}
CUT_OFF = {*STILL, "no_gradient"}
"""No gradient arrives."""


@fault("optimizer misses a layer, MLP", STILL, where="0", wrong={"vanishing"})
def missed(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), mlp(64, 48, 48, 10)
    optimizer = Adam([*model[2].parameters(), *model[4].parameters()], lr=1e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return None


@fault("optimizer misses a layer, GPT", STILL, where="head", wrong={"vanishing"})
def missed_head(watch: Watch, seed: int) -> Check | None:
    """The head is made anew for the vocabulary after the optimizer."""
    model, text = GPT(), passages(400, 33, seed=seed)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    model.head = nn.Linear(32, model.head.out_features, bias=False)
    batches = pairs(text[:, :-1], text[:, 1:], steps=150, size=16, seed=seed)
    fit(watch, model, optimizer, batches, tokens, holdout=language())
    return None


@fault("tensor replaced after the optimizer was made, CNN", STILL, where="4", wrong={"vanishing"})
def replaced(watch: Watch, seed: int) -> Check | None:
    data, model = digits(images=True), cnn(norm=True)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    model[4].weight = nn.Parameter(model[4].weight.detach().clone())
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return None


class OwnShard(AdamW):
    """Updates every second tensor, as one rank of a sharded optimizer does whose results are never gathered."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"][1::2]:
                parameter.grad = None
        return super().step(closure)


@fault("optimizer steps its own shard alone, ViT", STILL, wrong={"vanishing"})
def own_shard(watch: Watch, seed: int) -> Check | None:
    data, model = digits(images=True), hf_vit()
    batches = pairs(*data[:2], steps=100, seed=seed)
    optimizer = OwnShard(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, batches, lambda out, y: classes(out.logits, y), holdout=holdout(data))
    return None


@fault("learning rate of one group zero, CNN", {"learning_rate_zero", *STILL})
def still_group(watch: Watch, seed: int) -> Check | None:
    """The rate of the first stage was never raised again."""
    data, model = digits(images=True), cnn(norm=True)
    first, others = list(model[0].parameters()), [p for layer in model[1:] for p in layer.parameters()]
    optimizer = Adam([{"params": first, "lr": 0.0}, {"params": others}], lr=1e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return None


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = mlp(64, 48, 32), mlp(32, 32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).detach())


@fault("encoder detached, MLP", CUT_OFF, where="encoder", wrong={"vanishing"})
def detached(watch: Watch, seed: int) -> Check | None:
    data, model = digits(), Detached()
    optimizer = Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return None


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(30, 48), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():  # left from an evaluation
            hidden = torch.relu(self.embed(x))
        return self.head(hidden)


@fault("no_grad left around the encoder, MLP", CUT_OFF, where="embed", wrong={"vanishing"})
def no_grad_left(watch: Watch, seed: int) -> Check | None:
    data, model = table("breast_cancer"), NoGrad()
    optimizer = Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), holdout=holdout(data))
    return None


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = mlp(16, 48, 32), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.body(x))
        return torch.cat([self.first(hidden), self.second(hidden)], 1)


@fault("loss reaches one of two outputs, two heads", {"unreached_outputs", *STILL}, where="second")
def unreached(watch: Watch, seed: int) -> Check | None:
    data, model = teacher(outputs=2, seed=seed), TwoHeads()
    optimizer = Adam(model.parameters(), lr=3e-3)
    watching = {"holdout": holdout(data), "loss": nn.functional.mse_loss}
    batches = pairs(*data[:2], steps=150, seed=seed)
    fit(watch, model, optimizer, batches, lambda out, y: squares(out[:, :1], y[:, :1]), **watching)
    return None


@fault("loss reaches half of the classes, MLP", {"unreached_outputs", "class_never_seen"})
def unreached_classes(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 48, 10)
    optimizer = Adam(model.parameters(), lr=3e-3)

    def half(out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(out[:, :5], nn.functional.one_hot(y, 10)[:, :5].float())

    fit(watch, model, optimizer, pairs(*data[:2], steps=150, seed=seed), half, holdout=holdout(data))
    return below(accuracy(model, *data[2:]), 0.8)


@fault("embeddings collapse, no negatives", {"embedding_collapse"}, since=None)
def collapsed(watch: Watch, seed: int) -> Check:
    """Two views are drawn together and nothing holds others apart."""
    data, model = digits(), mlp(64, 64, 16)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=200, seed=seed):
            first, second = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
            loss = (first - second).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(float(model(data[2]).std(0).mean()), 0.05)


@fault("embeddings collapse, cosine", {"embedding_collapse"}, since=None)
def collapsed_cosine(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn(classes=16)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=150, seed=seed):
            first, second = model(x), model(x + 0.1 * torch.randn_like(x))
            loss = 1 - nn.functional.cosine_similarity(first, second).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    code = nn.functional.normalize(model(data[2]), dim=1)
    return below(float(1 - (code @ code.T).mean()), 0.1)
