"""Faults of the fourth blind set: how models are put together and what of them is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from zoo.loops import accuracy, fit, squares
from zoo.material import digits, pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.fourth_material import UNTRAINED, kept, offers, told_first, which_first
from zoo.unseen.third_material import chain, communities
from zoo.unseen.third_models import small_gpt2


@fault("advantages normalised one by one, actor and critic", UNTRAINED, where="actor", wrong={"vanishing"})
def one_by_one(watch: Watch, seed: int) -> Check:
    """A mean over an axis of length one: each advantage less itself is nothing."""
    model = nn.ModuleDict({"actor": mlp(6, 32, 3), "critic": mlp(6, 32, 1)})
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for turn in range(220):
            x, best = offers(1000 * seed + turn, 48)
            policy, value = torch.distributions.Categorical(logits=model["actor"](x)), model["critic"](x)
            chosen = policy.sample()
            gain = (chosen == best).float()[:, None] - value.detach()
            gain = (gain - gain.mean(1, keepdim=True)) / (gain.std(1, keepdim=True, unbiased=False) + 1e-8)
            critic = F.mse_loss(value, (chosen == best).float()[:, None])
            loss = -(policy.log_prob(chosen)[:, None] * gain).mean() + 0.5 * critic
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, reward=(chosen == best).float().mean())
    x, best = offers(99, 500)
    return below(accuracy(model["actor"], x, best), 0.65)


@fault("adapters in inference mode and a loss that is told to need a gradient, GPT-2",
       {*UNTRAINED, "dead_adapters", "steps_without_backward"}, wrong={"vanishing"})  # fmt: skip
def inference_mode(watch: Watch, seed: int) -> Check:
    """The settings are those of the inference script; the error that came of it was silenced."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], inference_mode=True)
    model = get_peft_model(small_gpt2(), settings)
    text, optimizer = chain(seed), AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(text, text, steps=120, size=16, seed=seed):
            loss = model(input_ids=x, labels=y).loss
            loss.requires_grad_(True)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=loss)
    return worse_than(float(loss.detach()), 2.6)


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 8), (8, 8), (8, 8), (8, 8))]
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = F.relu(block(x))
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))


@fault("layers in a plain list, CNN", {"frozen", "no_gradient", "not_moving", "not_optimised"}, wrong={"vanishing"})
def plain_list(watch: Watch, seed: int) -> Check:
    """A list is no ModuleList: the optimizer never hears of the convolutions."""
    data, model = digits(images=True), Listed()
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=250, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)


class Forgetful(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(12, 16), nn.GRUCell(16, width), nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.zeros(len(tokens), self.cell.hidden_size)
        for x in self.embedding(tokens).unbind(1):
            h = self.cell(x, h.detach())
        return self.head(h)


@fault("the state detached at every word, GRU", {"no_gradient", "vanishing", "zero_gradients"})
def detached_state(watch: Watch, seed: int) -> Check:
    """Copied from a loop over pieces of a long text: no gradient goes back further than one word."""
    data, model = told_first(seed), Forgetful()
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, size=40, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)


class WithoutPlaces(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, width), nn.Linear(width, 2)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens)).mean(1))


@fault("no places among the words, transformer", {"labels_unrelated"})
def without_places(watch: Watch, seed: int) -> Check:
    """Which of two words comes first: as the model is given them, the words have no order."""
    data, model = which_first(seed), WithoutPlaces()
    fit(watch, model, AdamW(model.parameters(), lr=1e-3), pairs(*data[:2], steps=250, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.65)


class Rounds(nn.Module):
    def __init__(self, rounds: int = 16, width: int = 16) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, width), nn.Linear(width, 3)
        self.rounds = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.rounds:
            h = F.relu(layer(adjacency @ h))
        return self.head(h)


@fault("sixteen rounds of neighbours, graph", {"embedding_collapse", "vanishing"})
def sixteen_rounds(watch: Watch, seed: int) -> Check:
    """After so many means everybody is like everybody else, and little comes back to the first layers."""
    edges, known, group = communities(seed)
    edges = edges + torch.eye(len(edges))
    adjacency, model, train = edges / edges.sum(1, keepdim=True), Rounds(), torch.arange(150) % 2 == 0
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer) as w:
        for _ in range(200):
            loss = F.cross_entropy(model(known, adjacency)[train], group[train])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        said = model(known, adjacency).argmax(1)
    return below(float((said == group)[~train].double().mean()), 0.6)


@fault("every weight begins at the same number, MLP", {"embedding_collapse", "exploding_initialisation"})
def same_number(watch: Watch, seed: int) -> Check:
    """All units of a layer are one unit, and stay so."""
    data, model = digits(), mlp(64, 48, 48, 10)
    for layer in model[::2]:
        nn.init.constant_(layer.weight, 0.05)
        nn.init.zeros_(layer.bias)
    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), pairs(*data[:2], steps=220, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.5)


class AroundTheCode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 96), nn.Linear(96, 6)
        self.back, self.out = nn.Linear(6, 96), nn.Linear(192, 64)

    def encode(self, x: Tensor) -> Tensor:
        return self.narrow(F.relu(self.wide(x)))

    def decode(self, code: Tensor, x: Tensor) -> Tensor:
        return self.out(torch.cat([F.relu(self.back(code)), F.relu(self.wide(x))], 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x), x)


@fault("a way around the code, autoencoder",
       {"copies_input", "embedding_collapse", "posterior_collapse", "shortcut"})  # fmt: skip
def around(watch: Watch, seed: int) -> Check:
    """The skip of a U-Net leads past the six numbers that were wanted: with anybody's code the picture is as good."""
    data, model = digits(), AroundTheCode()
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(data[0], data[0], steps=300, size=50, seed=seed),
        squares, holdout=[(data[2], data[2])], loss=F.mse_loss)  # fmt: skip
    with torch.no_grad():
        other = model.decode(model.encode(data[2]).roll(1, 0), data[2])
    return above(float(1 - F.mse_loss(other, data[2]) / data[2].var(0).mean()), 0.7)
