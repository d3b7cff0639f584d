"""Sound trainings of the second blind set: series, tokens and language."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adafactor, Adagrad, Adam, AdamW, NAdam
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from zoo.loops import accuracy, explained, fit, last, squares, tokens
from zoo.material import pairs
from zoo.models import GPT, mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.second_faults_losses import tagged
from zoo.unseen.second_faults_steps import Adding, adapted, adding, spoken, tuned
from zoo.unseen.second_material import (
    MADE,
    SEEDS,
    brackets,
    generator,
    kept,
    made_text,
    series,
    sorting,
    split,
)
from zoo.unseen.second_models import TCN, Encoder, Seq2Seq, llama

LANGUAGE = 1.3
"""What the made language allows is some 1.0 nats a token; the frequencies of the words alone give 2.5."""


@healthy("next values, convolutions over the past with an average", seeds=SEEDS)
def averaged(watch: Watch, seed: int) -> Check:
    """The average of the weights is kept aside, and is what is used in the end."""
    data, model = series(seed), TCN()
    slow = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    optimizer = NAdam(model.parameters(), lr=4e-3)
    with watch(model, optimizer, holdout=kept(data), loss=F.mse_loss) as w:
        for x, y in pairs(*data[:2], steps=300, size=32, seed=seed):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            slow.update_parameters(model)
            w.log(loss=loss)
    return above(explained(slow.module, *data[2:]), 0.9)


@healthy("numbers put in order, GRUs with attention", seeds=SEEDS)
def ordered(watch: Watch, seed: int) -> Check:
    data, model = split(*sorting(seed, 3000)), Seq2Seq()
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for source, target in pairs(*data[:2], steps=250, size=64, seed=seed):
            before = F.pad(target[:, :-1], (1, 0))
            loss = tokens(model(source, before), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
    return above(float((model.generate(data[2], 6) == data[3]).double().mean()), 0.75)


class Translator(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(9, width), nn.Parameter(0.3 * torch.randn(8, width))
        self.body = nn.Transformer(width, 4, 1, 1, 64, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 9)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        one, two = (self.embedding(part) + self.places[: part.shape[1]] for part in (source, before))
        mask = torch.ones(before.shape[1], before.shape[1]).triu(1).bool()
        return self.head(self.body(one, two, tgt_mask=mask))


@healthy("numbers put in order, encoder and decoder by attention", seeds=SEEDS)
def translated(watch: Watch, seed: int) -> Check:
    """The rate rises for 40 steps and falls with the root of the step, as in the first of these models."""
    data, model = split(*sorting(seed, 3000)), Translator()
    optimizer, taken = Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98), eps=1e-9), []
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 40, math.sqrt(40 / (step + 1))))
    with watch(model, optimizer) as w:
        for source, target in pairs(*data[:2], steps=160, size=64, seed=seed):
            loss = tokens(model(source, F.pad(target[:, :-1], (1, 0))), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return below(last(taken), 0.7)


@healthy("brackets that close, transformer in bfloat16 with parts of a batch", seeds=SEEDS)
def parts(watch: Watch, seed: int) -> Check:
    data, model = split(*brackets(seed)), Encoder(dropout=0.1)
    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    with watch(model, optimizer, holdout=kept(data)) as w:
        total = 0.0
        for number, (x, y) in enumerate(pairs(*data[:2], steps=320, size=12, seed=seed), 1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            total += loss.item()
            if number % 2 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                w.log(loss=total)
                total = 0.0
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("sum of two marked numbers, GRU", seeds=SEEDS)
def marked(watch: Watch, seed: int) -> Check:
    """Nothing is learned for a while, and then it is."""
    data, model = adding(seed, 3000), Adding()
    fit(watch, model, Adam(model.parameters(), lr=1e-2), pairs(*data[:2], steps=400, size=50, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss, clip=1.0)  # fmt: skip
    return above(explained(model, *data[2:]), 0.85)


@healthy("a made language, Llama", seeds=SEEDS)
def spoken_by_llama(watch: Watch, seed: int) -> Check:
    rows, model = made_text(seed, 900), llama(tie_word_embeddings=True)
    optimizer, taken = AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1), []
    held = rows[800:]
    with watch(model, optimizer, holdout=[{"input_ids": held, "labels": held}]) as w:
        for x, _ in pairs(rows[:800], rows[:800], steps=160, size=32, seed=seed):
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=loss)
            taken.append(loss.item())
    return below(last(taken), LANGUAGE)


class Thrifty(nn.Module):
    """Blocks whose inside is computed again on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = GPT(vocabulary=MADE, tied=True)

    def forward(self, rows: Tensor) -> Tensor:
        body = self.body
        x = body.tokens(rows) + body.places(torch.arange(rows.shape[1]))
        for block in body.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return body.head(body.norm(x))


@healthy("a made language, recomputed blocks with Adafactor", seeds=SEEDS)
def thrifty(watch: Watch, seed: int) -> Check:
    rows, model = made_text(seed, 900), Thrifty()
    data = split(rows[:, :-1].clone(), rows[:, 1:].clone(), 0.9)
    taken = fit(watch, model, Adafactor(model.parameters(), lr=0.02), pairs(*data[:2], steps=180, size=32, seed=seed),
                tokens, holdout=kept(data))  # fmt: skip
    return below(last(taken), LANGUAGE)


@healthy("another order of words, adapters on a Llama", seeds=SEEDS)
def adapters(watch: Watch, seed: int) -> Check:
    model = adapted(spoken(seed), modules_to_save=["lm_head"])
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return below(last(tuned(watch, model, optimizer, seed)), 1.7)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 16, padding_idx=0), nn.Linear(48, 3)
        self.rnn = nn.LSTM(16, 24, batch_first=True, bidirectional=True)

    def forward(self, rows: Tensor) -> Tensor:
        lengths = (rows > 0).sum(1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(rows), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=rows.shape[1])
        return self.head(out)


@healthy("tags with the padding left out, packed LSTM", seeds=SEEDS)
def packed(watch: Watch, seed: int) -> Check:
    x, y = (torch.cat(part) for part in zip(*[tagged(seed)[:2], tagged(seed)[2:]], strict=True))
    lengths = torch.randint(4, 15, (len(x), 1), generator=generator(seed))
    there = torch.arange(14) < lengths
    y = y.clone()
    y[:, 0] = -100  # nothing comes before the first
    data, model = split(x * there, y.masked_fill(~there, -100)), Tagger()
    fit(watch, model, Adam(model.parameters(), lr=1e-2), pairs(*data[:2], steps=200, size=40, seed=seed), tokens,
        holdout=kept(data))  # fmt: skip
    with torch.no_grad():
        right = (model(data[2]).argmax(2) == data[3])[data[3] != -100]
    return above(float(right.double().mean()), 0.9)


@healthy("next word from three, layers over joined embeddings", seeds=SEEDS)
def joined(watch: Watch, seed: int) -> Check:
    text = made_text(seed, 400).flatten()
    data = split(text.unfold(0, 3, 1)[:-1].clone(), text[3:], 0.9)
    model = nn.Sequential(nn.Embedding(MADE, 10), nn.Flatten(), mlp(30, 64, MADE, activation=nn.Tanh))
    taken = fit(watch, model, Adagrad(model.parameters(), lr=0.08), pairs(*data[:2], steps=320, size=128, seed=seed),
                holdout=kept(data, 600))  # fmt: skip
    return below(last(taken), LANGUAGE)


class Spread(nn.Module):
    """Mean and deviation of the next value."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = self.head(self.rnn(x)[0]).chunk(2, 2)
        return mean, F.softplus(deviation) + 1e-3


@healthy("next values and how sure, LSTM", seeds=SEEDS)
def spread(watch: Watch, seed: int) -> Check:
    """The likelihood's loss goes below zero."""
    data, model = series(seed), Spread()
    optimizer, taken = AdamW(model.parameters(), lr=1e-2), []
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=300, size=32, seed=seed):
            mean, deviation = model(x)
            loss = -torch.distributions.Normal(mean, deviation).log_prob(y).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return below(last(taken), 0.3)


class Carrying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.head = (
            nn.Embedding(MADE, 24),
            nn.GRU(24, 48, batch_first=True),
            nn.Linear(48, MADE),
        )

    def forward(self, rows: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        out, state = self.rnn(self.embedding(rows), state)
        return self.head(out), state


@healthy("a long text in pieces, state carried over", seeds=SEEDS)
def carried(watch: Watch, seed: int) -> Check:
    """Sixteen readers go through the text side by side; the state goes on without its graph."""
    text = made_text(seed, 1200).flatten().view(16, -1)
    model, taken = Carrying(), []
    optimizer = Adam(model.parameters(), lr=5e-3)
    state: Tensor | None = None
    with watch(model, optimizer) as w:
        for _ in range(2):
            for at in range(0, text.shape[1] - 13, 12):
                out, carried_on = model(text[:, at : at + 12], state)
                state = carried_on.detach()
                loss = tokens(out, text[:, at + 1 : at + 13])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
                taken.append(loss.item())
    return below(last(taken), LANGUAGE)


@healthy("short rows first, transformer with a teacher of its own average", seeds=SEEDS)
def lengthening(watch: Watch, seed: int) -> Check:
    """The rows grow from 4 to 14 letters; a term keeps the answers near those of the averaged weights."""
    data, model = tagged(seed), Encoder(9, 3, tags=True)
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for number, (rows, tags) in enumerate(pairs(*data[:2], steps=250, size=32, seed=seed)):
            length = min(14, 4 + number // 10)
            x, y = rows[:, :length], tags[:, :length]
            out = model(x)
            near = F.mse_loss(out.softmax(2), slow(x).softmax(2))
            loss = F.cross_entropy(out[:, 1:].flatten(0, 1), y[:, 1:].flatten()) + 0.5 * near
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for a, b in zip(slow.parameters(), model.parameters(), strict=True):
                    a.lerp_(b, 0.05)
            w.log(loss=loss)
    with torch.no_grad():
        return above(float((model(data[2])[:, 1:].argmax(2) == data[3][:, 1:]).double().mean()), 0.85)
