"""Sound trainings of the third blind set: sequences and texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop, SparseAdam
from torch.optim.lr_scheduler import LambdaLR

from zoo.loops import accuracy, fit, last, tokens
from zoo.material import pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.third_material import SEEDS, chain, generator, kept, reviews, split
from zoo.unseen.third_models import Judge, small_gpt2


@healthy("parity of three bits among many, plateau and then a drop", seeds=SEEDS)
def parity(watch: Watch, seed: int) -> Check:
    """For long there is no slope to speak of, and the loss stands at that of a coin."""
    g = generator(seed)
    bits = 2.0 * torch.randint(2, (40_000, 14), generator=g) - 1
    data, model = split(bits, (bits[:, :3].prod(1) > 0).long()), mlp(14, 128, 2)
    optimizer = SGD(model.parameters(), lr=0.06, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data, 500)) as w:
        for x, y in pairs(*data[:2], steps=500, size=64, seed=seed):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.95)


@healthy("kinds of reviews, half of the run is warm-up", seeds=SEEDS)
def long_warm_up(watch: Watch, seed: int) -> Check:
    """The rate rises for 150 steps, and falls with the root of the step."""
    data, model = reviews(seed, 6000, classes=4), Judge(200, 4)
    optimizer = Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 150, (150 / (step + 1)) ** 0.5))
    fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=32, seed=seed), schedule=schedule,
        holdout=kept(data), loss=nn.CrossEntropyLoss())  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.7)


class Forecaster(nn.Module):
    """Reads twelve values and says eight; of each, the one before is the true one or its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(1, 32), nn.Linear(32, 1)

    def forward(self, past: Tensor, future: Tensor | None = None, trusted: float = 0.0) -> Tensor:
        h = past.new_zeros(len(past), 32)
        for value in past.unbind(1):
            h = self.cell(value[:, None], h)
        said = [self.out(h)]
        for place in range(7):
            before = said[-1] if future is None or torch.rand(()) > trusted else future[:, place, None]
            h = self.cell(before, h)
            said.append(self.out(h))
        return torch.cat(said, 1)


@healthy("next eight values, less and less is told", seeds=SEEDS)
def less_told(watch: Watch, seed: int) -> Check:
    """The true values are given at first and its own at the end, which is harder: the loss may rise meanwhile."""
    g = generator(seed)
    t, pace, phase = torch.arange(20) / 6, 0.6 + torch.rand(1200, 1, generator=g), torch.rand(1200, 1, generator=g)
    wave = (6.28 * (pace * t + phase)).sin() + 0.03 * torch.randn(1200, 20, generator=g)
    data, model = split(wave[:, :12], wave[:, 12:]), Forecaster()
    optimizer = RMSprop(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data), loss=F.mse_loss) as w:
        for step, (x, y) in enumerate(pairs(*data[:2], steps=280, size=40, seed=seed)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x, y, trusted=max(0.0, 1 - step / 200)), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float(F.mse_loss(model(data[2]), data[3])), 0.2)


@healthy("texts turned round, T5 with parts of a batch", seeds=SEEDS)
def turned_round(watch: Watch, seed: int) -> Check:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=20, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.0,
                      decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)  # fmt: skip
    model: Any = T5ForConditionalGeneration(config)
    text = torch.randint(2, 20, (1200, 6), generator=generator(seed))
    optimizer, taken = AdamW(model.parameters(), lr=5e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(text, text, steps=170, size=32, seed=seed):
            mean = 0.0
            for part in x.chunk(2):
                loss = model(input_ids=part, labels=part.flip(1)).loss / 2
                loss.backward()
                mean += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=mean)
            taken.append(mean)
    return below(last(taken), 2.0)


def spoken(seed: int) -> Any:
    """A GPT-2 that knows two languages a little."""
    model = small_gpt2()
    optimizer = AdamW(model.parameters(), lr=4e-3)
    text = torch.cat([chain(seed, tongue=0), chain(seed, tongue=1)])
    for batch, _ in pairs(text, text, steps=120, size=24, seed=seed):
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return model


@healthy("a third language, nothing but biases are trained", seeds=SEEDS)
def biases(watch: Watch, seed: int) -> Check:
    text, model = chain(seed, tongue=2), spoken(seed)
    for name, p in model.named_parameters():
        p.requires_grad = name.endswith("bias") or "ln_" in name
    optimizer, taken = AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02), []
    with watch(model, optimizer, holdout=[{"input_ids": chain(seed + 5, 40, tongue=2)} | {
        "labels": chain(seed + 5, 40, tongue=2)}]) as w:  # fmt: skip
        for batch, _ in pairs(text, text, steps=150, size=24, seed=seed):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=loss)
            taken.append(float(loss))
    return below(last(taken), 2.45)


class Tagger(nn.Module):
    """One number of each place."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(16, width), nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(text))[0]).squeeze(2)


@healthy("which words were replaced, one in eight", seeds=SEEDS)
def replaced(watch: Watch, seed: int) -> Check:
    """Most places are as they were: the loss begins low, and the rare ones are found all the same."""
    text, model = chain(seed, 800), Tagger()
    optimizer = AdamW(model.parameters(), lr=4e-3)

    def spoiled(x: Tensor) -> tuple[Tensor, Tensor]:
        other = torch.where(torch.rand(x.shape) < 0.125, torch.randint(16, x.shape), x)
        return other, (other != x).float()

    with watch(model, optimizer) as w:
        for x, _ in pairs(text, text, steps=250, size=32, seed=seed):
            given, target = spoiled(x)
            loss = F.binary_cross_entropy_with_logits(model(given), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    given, target = spoiled(chain(seed + 5, 200))
    with torch.no_grad():
        found = model(given) > 0
    return above(float(found[target > 0].double().mean() - found[target == 0].double().mean()), 0.5)


@healthy("digits to be copied, rows that grow", seeds=SEEDS)
def rows_that_grow(watch: Watch, seed: int) -> Check:
    """Rows of 2, 3, 4 and 5 digits to say again after a mark: the loss jumps when they get longer."""
    g = generator(seed)
    embedding, rnn, head = nn.Embedding(9, 48), nn.LSTM(48, 64, batch_first=True), nn.Linear(64, 9)
    model = nn.ModuleDict({"embedding": embedding, "rnn": rnn, "head": head})
    optimizer, taken = Adam(model.parameters(), lr=5e-3), []
    with watch(model, optimizer) as w:
        for length in (2, 3, 4, 5):
            for _ in range(90):
                x = torch.randint(8, (48, length), generator=g)
                given = torch.cat([x, torch.full((48, length), 8)], 1)
                out = head(rnn(embedding(given))[0][:, length:])
                loss = tokens(out, x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss, length=length)
                taken.append(float(loss))
    return below(last(taken), 1.0)


@healthy("words that stand together, sparse embeddings", seeds=SEEDS)
def together(watch: Watch, seed: int) -> Check:
    """Two tables with sparse gradients: in a step, few of the rows are touched."""
    g = generator(seed)
    subject = torch.randint(10, (20_000,), generator=g)
    first, second = (40 * subject + torch.randint(40, (20_000,), generator=g) for _ in range(2))
    model = nn.ModuleDict({name: nn.Embedding(400, 12, sparse=True) for name in ("word", "context")})
    for part in model.values():
        nn.init.normal_(part.weight, std=0.3)
    optimizer, taken = SparseAdam(model.parameters(), lr=0.02), []
    with watch(model, optimizer) as w:
        for a, b in pairs(first, second, steps=350, size=128, seed=seed):
            word = model["word"](a)
            near = (word * model["context"](b)).sum(1)
            far = (word[:, None] * model["context"](torch.randint(400, (128, 4)))).sum(2)
            loss = -F.logsigmoid(near).mean() - F.logsigmoid(-far).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(float(loss))
    return below(last(taken), 2.2)
