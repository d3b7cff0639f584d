"""Sound trainings of the fifth blind set: texts and series."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from zoo.loops import accuracy, fit, last
from zoo.material import language, pairs, passages
from zoo.models import GPT
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.fifth_material import SEEDS, generator, kept, letters_to, meters, sentences
from zoo.unseen.fifth_models import WordConv, Words, little_bert


@healthy("letters, smoothed labels and dropout of a third", seeds=SEEDS)
def smoothed(watch: Watch, seed: int) -> Check:
    """The loss has a floor far from nothing, and that of the holdout is lower."""
    text, model = passages(1500, 33, seed=seed), GPT(dropout=0.33)
    optimizer = AdamW(model.parameters(), lr=4e-3)
    losses = fit(watch, model, optimizer, pairs(text[:, :-1], text[:, 1:], steps=300, size=16, seed=seed),
                 lambda outputs, y: F.cross_entropy(outputs.flatten(0, 1), y.flatten(), label_smoothing=0.15),
                 clip=1.0, holdout=language())  # fmt: skip
    return below(last(losses), 2.85)


@healthy("a made language, one word in five is hidden, BERT", seeds=SEEDS)
def hidden(watch: Watch, seed: int) -> Check:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=19, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=96, max_position_embeddings=24, pad_token_id=0, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)  # fmt: skip
    model: Any = BertForMaskedLM(config)
    text, optimizer, losses = sentences(seed, 1200), AdamW(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(text, text, steps=300, size=32, seed=seed):
            hide = (torch.rand(x.shape) < 0.2) & (x > 0)
            given, labels = x.where(~hide, 18), x.where(hide, -100)
            loss = model(input_ids=given, attention_mask=(x > 0).long(), labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 1.75)


@healthy("kinds of texts, adapters with magnitudes and a new head on a BERT", seeds=SEEDS)
def magnitudes(watch: Watch, seed: int) -> Check:
    from peft import LoraConfig, get_peft_model

    data, bert = letters_to(seed), little_bert()
    first = AdamW(bert.parameters(), lr=2e-3)
    for x, y in pairs(*data[:2], steps=200, size=32, seed=seed):
        first.zero_grad()
        bert(input_ids=x, labels=3 - y).loss.backward()
        first.step()
    bert.classifier = nn.Linear(32, 4)
    settings = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, use_dora=True, target_modules=["query", "value"])
    model: Any = get_peft_model(bert, settings)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    with watch(model, optimizer, holdout=[{"input_ids": data[2][:200], "labels": data[3][:200]}]) as w:
        for x, y in pairs(*data[:2], steps=180, size=32, seed=seed):
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.75)


class Stack(nn.Module):
    """Blocks that each take off what they explain and add what they forecast."""

    def __init__(self, length: int = 24, ahead: int = 4, width: int = 48) -> None:
        super().__init__()
        self.ahead = ahead
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(length, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                          nn.Linear(width, length + ahead)) for _ in range(3)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        rest, ahead = x.squeeze(1), x.new_zeros(len(x), self.ahead)
        for block in self.blocks:
            explained, forecast = block(rest).split([rest.shape[1], self.ahead], 1)
            rest, ahead = rest - explained, ahead + forecast
        return ahead


@healthy("next readings, blocks that take off what they explain", seeds=SEEDS)
def taken_off(watch: Watch, seed: int) -> Check:
    data, model = meters(seed), Stack()
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=350, size=40, seed=seed), F.l1_loss,
        holdout=kept(data), loss=F.l1_loss)  # fmt: skip
    with torch.no_grad():
        return below(float(F.mse_loss(model(data[2]), data[3]) / data[3].var()), 0.3)


class Quantiles(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 40_000 + 10_000 * self.head(self.rnn((x.transpose(1, 2) - 40_000) / 10_000)[1][0][0])


@healthy("tens of thousands of watts, three quantiles", seeds=SEEDS)
def watts(watch: Watch, seed: int) -> Check:
    """The model knows the units, and the loss is in thousands."""
    data, model, cuts = meters(seed, ahead=1), Quantiles(), torch.tensor([0.1, 0.5, 0.9])
    x, y, held, later = (40_000 + 10_000 * part for part in data)
    y, later = y.repeat(1, 3), later.repeat(1, 3)

    def pinball(said: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(cuts * (y - said), (cuts - 1) * (y - said)).mean()

    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(x, y, steps=300, size=40, seed=seed), pinball,
        clip=1.0, holdout=[(held[:200], later[:200])], loss=pinball)  # fmt: skip
    with torch.no_grad():
        return below(float(F.mse_loss(model(held)[:, 1], later[:, 1]) / later.var()), 0.3)


@healthy("kinds of texts, the clear ones first", seeds=SEEDS)
def clear_first(watch: Watch, seed: int) -> Check:
    """In each of three stages harder texts come in, and the loss goes up."""
    data, model = letters_to(seed), Words()
    own = ((data[0] - 1) // 14 == data[1][:, None]).sum(1)
    optimizer = AdamW(model.parameters(), lr=2e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for stage, least in enumerate((7, 6, 0)):
            rows = own >= least
            for x, y in pairs(data[0][rows], data[1][rows], steps=(60, 60, 180)[stage], size=32, seed=seed + stage):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.75)


class Field(nn.Module):
    """Scores of three tags at each place, and of each tag after each: a linear chain."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(12, 16), nn.GRU(16, width, batch_first=True, bidirectional=True)
        self.head, self.after = nn.Linear(2 * width, 3), nn.Parameter(torch.zeros(3, 3))

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(text))[0])

    def unlikely(self, text: Tensor, tags: Tensor) -> Tensor:
        """How unlikely the tags are, added up over each text."""
        scores = self(text)
        path = scores.gather(2, tags[:, :, None]).sum((1, 2)) + self.after[tags[:, :-1], tags[:, 1:]].sum(1)
        all_of = scores[:, 0]
        for at in range(1, text.shape[1]):
            all_of = (all_of[:, :, None] + self.after + scores[:, at, None]).logsumexp(1)
        return (all_of.logsumexp(1) - path).mean()


@healthy("names in texts, a chain of tags added up", seeds=SEEDS)
def names(watch: Watch, seed: int) -> Check:
    """A name begins with one of two words and goes on over the next two, which may be any."""
    g, model = generator(seed), Field()
    text = torch.randint(2, 12, (1300, 14), generator=g)
    start = torch.randint(12, (1300,), generator=g)
    text[torch.arange(1300), start] = torch.randint(2, (1300,), generator=g)
    since = torch.arange(14) - start[:, None]
    tags = torch.where(since == 0, 1, torch.where((since > 0) & (since < 3), 2, 0))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer) as w:
        for x, y in pairs(text[:1000], tags[:1000], steps=200, size=25, seed=seed):
            loss = model.unlikely(x, y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        right = model(text[1000:]).argmax(2) == tags[1000:]
    return above(float(right[tags[1000:] > 0].double().mean()), 0.85)


@healthy("kinds of texts, half dropped and weights held small", seeds=SEEDS)
def held_small(watch: Watch, seed: int) -> Check:
    """Training never gets as good as the holdout."""
    data, model = letters_to(seed), WordConv(dropout=0.6)
    optimizer = RMSprop(model.parameters(), lr=2e-3, weight_decay=2e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=32, seed=seed), holdout=kept(data))
    return above(accuracy(model, *data[2:]), 0.75)
