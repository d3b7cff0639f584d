"""Faults of the fifth blind set: steps, rates, optimizers and what is resumed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR

from zoo.loops import accuracy, explained, fit, last, squares
from zoo.material import VOCABULARY, digits, language, pairs, passages
from zoo.models import hf_vit
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.fifth_material import TOO_HIGH, flats, kept, letters_to, sentences, stains
from zoo.unseen.fifth_models import Columns, UNet, covered, little_bert, little_gpt2


@fault("cleared before the epoch and not before the batch, U-Net", {"gradients_not_cleared"})
def before_the_epoch(watch: Watch, seed: int) -> Check:
    data, model = stains(seed), UNet()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data, 100), loss=nn.BCEWithLogitsLoss()) as w:
        for epoch in range(8):
            optimizer.zero_grad()
            for x, y in pairs(*data[:2], steps=24, size=25, seed=10 * seed + epoch):
                loss = F.binary_cross_entropy_with_logits(model(x), y)
                loss.backward()
                optimizer.step()
                w.log(loss=loss, epoch=epoch)
    return below(covered(model, *data[2:]), 0.75)


@fault("AdamW at a tenth, ViT", TOO_HIGH)
def at_a_tenth(watch: Watch, seed: int) -> Check:
    """The rate of a recipe for SGD and residual networks."""
    data, model = digits(images=True), hf_vit()
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=1e-4)
    fit(watch, model, optimizer, pairs(*data[:2], steps=200, size=32, seed=seed),
        lambda outputs, y: F.cross_entropy(outputs.logits, y), holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.4)


@fault("the rate of a fine-tuning for a training from nothing, BERT", {"learning_rate_too_low"},
       wrong={"labels_unrelated", "vanishing"})  # fmt: skip
def from_nothing(watch: Watch, seed: int) -> Check:
    """2e-5 is what everybody takes for a model that knows the language; this one begins at random."""
    data, model = letters_to(seed), little_bert()
    optimizer = AdamW(model.parameters(), lr=2e-5)
    with watch(model, optimizer, holdout=[{"input_ids": data[2][:200], "labels": data[3][:200]}]) as w:
        for x, y in pairs(*data[:2], steps=250, size=32, seed=seed):
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.5)


@fault("milestones in epochs and a step in every batch, convolutional autoencoder",
       {"learning_rate_too_low", "learning_rate_zero"}, since=None)  # fmt: skip
def milestones(watch: Watch, seed: int) -> Check:
    """The rate is cut to a tenth in batches 10, 20 and 30, where epochs were meant."""
    data = digits(images=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip
    optimizer = Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, pairs(data[0], data[0], steps=300, size=48, seed=seed), squares,
        schedule=MultiStepLR(optimizer, [10, 20, 30], 0.1), holdout=[(data[2][:200], data[2][:200])],
        loss=F.mse_loss)  # fmt: skip
    with torch.no_grad():
        return above(float(F.mse_loss(model(data[2]), data[2]) / data[2].var(0).mean()), 0.8)


class Counter(nn.Module):
    """A GRU over words that says their kind."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(60, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(text))[0].mean(1))


@fault("cleared before every part of an accumulated batch, GRU",
       {"backward_without_step", "gradients_cleared_early", "learning_rate_too_low"})  # fmt: skip
def every_part(watch: Watch, seed: int) -> Check:
    """Of eight parts the last alone is left when the step comes, at an eighth of its size."""
    data, model = letters_to(seed), Counter()
    optimizer = SGD(model.parameters(), lr=0.04, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=150, size=64, seed=seed):
            mean = 0.0
            for a, b in zip(x.chunk(8), y.chunk(8), strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(a), b) / 8
                loss.backward()
                mean += loss.item()
            optimizer.step()
            w.log(loss=mean)
    return below(accuracy(model, *data[2:]), 0.7)


class Teller(nn.Module):
    """The next word, by an LSTM."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(text))[0])


@fault("optimizer and schedule left out of the checkpoint, LSTM",
       {"learning_rate_too_high", "loss_spike", "state_reset"}, since=241)  # fmt: skip
def left_out(watch: Watch, seed: int) -> Check:
    """After a crash at step 240 the rate begins again at its top, with a memory of no gradient."""
    text, model = passages(1200, 33, seed=seed), Teller(VOCABULARY)
    optimizer = Adam(model.parameters(), lr=0.05)
    schedule = LambdaLR(optimizer, lambda s: 0.5 + 0.5 * math.cos(math.pi * min(s, 300) / 300))
    losses = []
    with watch(model, optimizer, holdout=language()) as w:
        for step, (x, y) in enumerate(pairs(text[:, :-1], text[:, 1:], steps=300, size=16, seed=seed)):
            if step == 240:
                optimizer.state.clear()
                schedule = LambdaLR(optimizer, lambda s: 0.5 + 0.5 * math.cos(math.pi * min(s, 300) / 300))
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return above(last(losses) - last(losses[:240]), 0.05)


@fault("a decay for AdamW in Adam, attention over columns", {"weight_decay_too_strong"})
def for_adamw(watch: Watch, seed: int) -> Check:
    """In Adam the decay is a gradient, and is made as large as any other."""
    data, model = flats(seed), Columns(10, 1)
    optimizer = Adam(model.parameters(), lr=3e-3, weight_decay=0.3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=250, size=40, seed=seed), squares, holdout=kept(data),
        loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.3)


@fault("clipped at a thousandth, GRU over words", {"clipped_hard", "learning_rate_too_low"})
def at_a_thousandth(watch: Watch, seed: int) -> Check:
    data, model = letters_to(seed), Counter()
    fit(watch, model, SGD(model.parameters(), lr=0.2, momentum=0.9), pairs(*data[:2], steps=220, size=32, seed=seed),
        clip=1e-3, holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)


@fault("weights kept in bfloat16 for a fine-tuning, GPT-2",
       {"learning_rate_too_low", "not_moving", "updates_absorbed"})  # fmt: skip
def kept_in_bfloat16(watch: Watch, seed: int) -> Check:
    """Loaded as bfloat16, as for inference: most of what a small rate adds is rounded away."""
    model: Any = little_gpt2()
    first, known, text = AdamW(model.parameters(), lr=4e-3), sentences(seed), sentences(seed, tongue=1)
    for x, _ in pairs(known, known, steps=100, size=24, seed=seed):
        first.zero_grad()
        model(input_ids=x, labels=x.where(x != 0, -100)).loss.backward()
        first.step()
    model.to(torch.bfloat16)
    optimizer, losses = AdamW(model.parameters(), lr=5e-5), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(text, text, steps=200, size=24, seed=seed):
            loss = model(input_ids=x, labels=x.where(x != 0, -100)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(last(losses), 2.6)
