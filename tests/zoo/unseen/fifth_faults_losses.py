"""Faults of the fifth blind set: losses, and what they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import TensorDataset

from zoo.loops import explained, fit, last
from zoo.material import digits, pairs, rows_of
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.fifth_material import (
    TOO_HIGH,
    UNTRAINED,
    apart,
    flats,
    generator,
    kept,
    letters_to,
    meters,
    sentences,
    stains,
)  # fmt: skip
from zoo.unseen.fifth_models import Columns, ConvVAE, Dilated, WordConv, little_gpt2


@fault("probabilities into the cross-entropy, convolutions over words", {"double_softmax"},
       wrong={"learning_rate_too_low", "vanishing"})  # fmt: skip
def probabilities(watch: Watch, seed: int) -> Check:
    data, model = letters_to(seed), nn.Sequential(WordConv(), nn.Softmax(dim=1))
    losses = fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
                 holdout=kept(data))  # fmt: skip
    return above(last(losses), 0.74)


@fault("errors added up over batch and hours, dilated convolutions", {*TOO_HIGH, "summed_loss"})
def added_up(watch: Watch, seed: int) -> Check:
    """The rate is from a run with the mean."""
    data, model = meters(seed), Dilated()
    fit(watch, model, SGD(model.parameters(), lr=0.02, momentum=0.9), pairs(*data[:2], steps=200, size=48, seed=seed),
        lambda outputs, y: F.mse_loss(outputs, y, reduction="sum"), holdout=kept(data),
        loss=nn.MSELoss(reduction="sum"))  # fmt: skip
    with torch.no_grad():
        return worse_than(float(F.mse_loss(model(data[2]), data[3]) / data[3].var()), 0.8)


@fault("a column of answers and a row of rents, attention over columns", {"targets_broadcast"})
def row_of_rents(watch: Watch, seed: int) -> Check:
    data, model = flats(seed), Columns(10, 1)
    fit(watch, model, AdamW(model.parameters(), lr=3e-3),
        pairs(data[0], data[1].squeeze(1), steps=220, size=40, seed=seed), F.smooth_l1_loss,
        holdout=TensorDataset(data[2][:200], data[3][:200].squeeze(1)), loss=F.smooth_l1_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.3)


@fault("the divergence taken off, convolutional VAE", {"diverging", "exploding", "loss_maximised", "nonfinite"})
def taken_off(watch: Watch, seed: int) -> Check:
    """The formula gives its negative, and one more minus was put before it: codes run away from the prior."""
    data, model = digits(images=True), ConvVAE()
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=200, size=50, seed=seed):
            made, mean, spread = model(x)
            error = F.mse_loss(made, x, reduction="sum") / len(x)
            divergence = 0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
            loss = error + 0.3 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        drawn = model.decoder(torch.randn(300, 6)).flatten(1)
    return worse_than(apart(drawn, data[0].flatten(1)), 2.2)


@fault("the hardest of a batch from the first step, triplets of digits",
       {"embedding_collapse", "learning_rate_too_high"})  # fmt: skip
def hardest(watch: Watch, seed: int) -> Check:
    """The farthest of the same digit and the nearest of another, at a rate for easier ones: all end in one point, and
    the loss at its margin."""
    data = digits(images=True)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
                          nn.Flatten(), nn.Linear(384, 16))  # fmt: skip
    optimizer, losses = Adam(model.parameters(), lr=1e-2), []
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=200, size=64, seed=seed):
            code = model(x)
            far = (code[:, None] - code).square().sum(2)
            same = y[:, None] == y
            near = far.masked_fill(~same, 0).amax(1)
            loss = F.relu(near - far.masked_fill(same, 1e9).amin(1) + 0.3).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return above(last(losses), 0.28)


@fault("the end of a sentence is the padding, GPT-2", {"class_never_seen", "ignored_class"})
def end_is_padding(watch: Watch, seed: int) -> Check:
    """There was no token for padding, so the end's was taken; where it stands, labels are left out. No sentence ever
    ends."""
    model: Any = little_gpt2()

    def batch(text: Tensor) -> dict[str, Tensor]:
        text = text.where(text != 0, 1)
        return {"input_ids": text, "labels": text.where(text != 1, -100)}

    text, held = sentences(seed), sentences(seed + 9, 100)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=[batch(held)]) as w:
        for x, _ in pairs(text, text, steps=200, size=24, seed=seed):
            loss = model(**batch(x)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        ends = model(input_ids=held).logits.softmax(2)[held >= 16][:, 1]
    return below(float(ends.mean()), 0.3)


class Translator(nn.Module):
    """A GRU reads a sentence, another says it in other words, given the words before."""

    def __init__(self, words: int = 14, width: int = 48) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        return self.head(self.decoder(self.target(before), self.encoder(self.source(source))[1])[0])


@fault("padding is scored as a word, encoder and decoder", {"padding_in_loss"}, wrong={"learning_rate_too_low"})
def padding_scored(watch: Watch, seed: int) -> Check:
    """Sentences of one to three words, padded to thirty: of the loss nine parts in ten are about nothing."""
    g, model = generator(seed), Translator()
    source = torch.randint(2, 14, (1600, 3), generator=g)
    said = torch.arange(3) < torch.randint(1, 4, (1600, 1), generator=g)
    source = source * said
    goal = F.pad(torch.where(said, (5 * source + 3) % 12 + 2, 0), (0, 27))
    before = F.pad(goal[:, :-1], (1, 0), value=1)
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for rows in rows_of(1300, steps=200, size=32, seed=seed):
            loss = F.cross_entropy(model(source[rows], before[rows]).transpose(1, 2), goal[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        right = model(source[1300:], before[1300:]).argmax(2) == goal[1300:]
    return below(float(right[goal[1300:] != 0].double().mean()), 0.8)


class Finder(nn.Module):
    """Where a stain is, and whether it is a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
                                  nn.Flatten(), nn.Linear(216, 48), nn.ReLU())  # fmt: skip
        self.size, self.place = nn.Linear(48, 2), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.size(h), self.place(h)


@fault("the second loss in place of the sum, two heads on stains", {*UNTRAINED, "unreached_outputs"}, where="size",
       wrong={"vanishing"})  # fmt: skip
def in_place_of_the_sum(watch: Watch, seed: int) -> Check:
    """`loss =` where `loss +=` was meant."""
    (x, masks, held, others), model = stains(seed), Finder()

    def wanted(masks: Tensor) -> tuple[Tensor, Tensor]:
        mass, line = masks.sum((1, 2, 3)), torch.arange(12.0)
        middle = torch.stack([masks.sum((1, 3)) @ line, masks.sum((1, 2)) @ line], 1) / mass[:, None]
        return (mass > 27).long(), (middle - 5.5) / 3

    size, place = wanted(masks)
    optimizer = AdamW(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for rows in rows_of(len(x), steps=200, size=32, seed=seed):
            said_size, said_place = model(x[rows])
            loss = F.cross_entropy(said_size, size[rows])
            loss = F.smooth_l1_loss(said_place, place[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float((model(held)[0].argmax(1) == wanted(others)[0]).double().mean()), 0.65)
