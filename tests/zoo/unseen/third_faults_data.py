"""Faults of the third blind set: in the data, and in how it is gathered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.data import DataLoader

from zoo.loops import accuracy, explained, fit, squares
from zoo.material import pairs
from zoo.models import hf_gpt2, mlp
from zoo.registry import Check, Watch, above, below, fault
from zoo.unseen.third_material import chain, frames, generator, kept, reviews, rides, split, tones, visits
from zoo.unseen.third_models import Listener, Reader, Segmenter

UNSCALED = {"inputs_out_of_range", "unscaled_inputs"}


@fault("missing values left as −999, visitors", UNSCALED)
def sentinel(watch: Watch, seed: int) -> Check:
    """The export writes −999 where nothing was measured, and nobody looked."""
    data, model = visits(seed), mlp(12, 48, 48, 3)
    drawn = torch.rand(1600, 12, generator=generator(seed)) < 0.08
    x = [part.masked_fill(lost, -999.0) for part, lost in zip(data[::2], drawn.split([1200, 400]), strict=True)]
    optimizer = SGD(model.parameters(), lr=0.03, momentum=0.9)
    w = watch(model, optimizer, holdout=[(x[1], data[3])])
    for rows, y in pairs(x[0], data[1], steps=250, size=40, seed=seed):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows), y)
        loss.backward()
        optimizer.step()
        w.log(loss=loss.item())
    w.close()
    return below(accuracy(model, x[1], data[3]), 0.75)


@fault("texts cut before the word that decides, GRU", {"labels_unrelated"}, since=None)
def cut_texts(watch: Watch, seed: int) -> Check:
    """max_length=12 of texts of 20 tokens whose answer is among the last four."""
    g = generator(seed)
    texts, label = torch.randint(1, 40, (1600, 20), generator=g), torch.randint(3, (1600,), generator=g)
    texts[torch.arange(1600), torch.randint(16, 20, (1600,), generator=g)] = 40 + label
    data, model = split(texts, label), Reader(44, 3)
    optimizer = Adam(model.parameters(), lr=2e-3)

    def collate(rows: list[int]) -> dict[str, Tensor]:
        return {"ids": data[0][rows][:, :12], "labels": data[1][rows]}

    loader = DataLoader(range(1200), 32, shuffle=True, collate_fn=collate, drop_last=True)  # type: ignore[arg-type]
    criterion = nn.CrossEntropyLoss()
    with watch(model, optimizer, holdout=[(data[2][:200, :12], data[3][:200])]) as w:
        for _ in range(7):
            for batch in loader:
                optimizer.zero_grad()
                loss = criterion(model(batch["ids"]), batch["labels"])
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return below(accuracy(model, data[2][:, :12], data[3]), 0.5)


@fault("recordings of the holdout at another rate, convolutions over time", {"holdout_differs", "not_generalising"},
       since=None)  # fmt: skip
def other_rate(watch: Watch, seed: int) -> Check:
    """One folder was resampled to 8 kHz and the other was not: every pitch of the holdout is a third lower."""
    data, model = tones(seed, rate=1.6), Listener()
    fit(watch, model, AdamW(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
        holdout=DataLoader(kept(data), 50))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.5)


@fault("words of the holdout looked up in another case, bag of words", {"holdout_differs"}, since=None)
def unknown_words(watch: Watch, seed: int) -> Check:
    """The vocabulary holds small letters: nine words of ten of the holdout are unknown, which is word 0."""
    data = reviews(seed, 1600)
    held = data[2].masked_fill(torch.rand(data[2].shape, generator=generator(seed)) < 0.9, 0)
    model = nn.Sequential(nn.EmbeddingBag(200, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = RMSprop(model.parameters(), lr=5e-3)
    with watch(model, optimizer, holdout=[(held[:200], data[3][:200])]) as w:
        for x, y in pairs(*data[:2], steps=220, size=50, seed=seed):
            loss = F.cross_entropy(model(x), y)
            w.log(loss=loss)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return below(accuracy(model, held, data[3]), 0.75)


@fault("pictures turned and their masks not, segmentation", {"label_noise", "labels_unrelated"}, since=None)
def turned(watch: Watch, seed: int) -> Check:
    """The transform draws flips and turns for the picture, and the mask is not given to it."""
    picture, _, _, mask = frames(seed)
    data, model = split(picture, mask), Segmenter()
    optimizer = Adam(model.parameters(), lr=4e-3)
    criterion = nn.BCEWithLogitsLoss()
    with watch(model, optimizer, holdout=kept(data), loss=criterion) as w:
        for x, y in pairs(*data[:2], steps=220, size=24, seed=seed):
            given = torch.rot90(x, int(torch.randint(4, ())), (2, 3))
            given = given.flip(3) if torch.rand(()) < 0.5 else given
            loss = criterion(model(given), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        found, true = model(data[2]) > 0, data[3] > 0.5
    return below(float((found & true).sum() / (found | true).sum()), 0.5)


@fault("a point read as a separator of thousands, rides", {"bad_batch", "label_noise", "loss_spike",
       "targets_out_of_range"}, since=None)  # fmt: skip
def separator(watch: Watch, seed: int) -> Check:
    """One number of a hundred was written in another country: its target is a thousand times too large."""
    data, model = rides(seed), mlp(6, 48, 48, 1, activation=nn.SiLU)
    hit = torch.rand(len(data[1]), 1, generator=generator(seed)) < 0.01
    fit(watch, model, Adam(model.parameters(), lr=2e-3),
        pairs(data[0], torch.where(hit, 1000 * data[1], data[1]), steps=300, size=40, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.3)


@fault("two languages one after the other, GPT-2", {"sorted_data"}, since=None)
def one_after_the_other(watch: Watch, seed: int) -> Check:
    """ConcatDataset and no shuffling: what was learned first is gone at the end."""
    text = [chain(seed, tongue=tongue) for tongue in (0, 1)]
    model: Any = hf_gpt2(length=20)
    optimizer = AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    held = [{"input_ids": rows[:40], "labels": rows[:40]} for rows in (chain(seed + 9, tongue=n) for n in (0, 1))]
    with watch(model, optimizer, holdout=held) as w:
        for batch in (*text[0].repeat(3, 1).split(10), *text[1].repeat(3, 1).split(10)):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float(model.eval()(**held[0]).loss), 2.2)


@fault("number of the row among the columns, visitors", {"holdout_differs", "not_generalising", "shortcut",
       "spurious_attribute"}, since=None)  # fmt: skip
def row_number(watch: Watch, seed: int) -> Check:
    """The file was written class by class; what came later has higher numbers and any class."""
    data, model = visits(seed, flipped=0.2), mlp(13, 64, 64, 3)
    order = data[1].argsort()
    x = torch.cat([data[0][order], torch.linspace(-3, 3, 1200)[:, None]], 1)
    held = torch.cat([data[2], torch.linspace(3, 5, 400)[:, None]], 1)
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(x, data[1][order], steps=250, size=50, seed=seed),
        holdout=[(held, data[3])])  # fmt: skip
    return below(accuracy(model, held, data[3]), 0.65)


@fault("one array appended again and again, values of a walk", {"duplicated_data"}, since=None)
def appended(watch: Watch, seed: int) -> Check:
    """The walk writes into one array, and the store holds that array many times: a batch is one state 64 times."""
    g = generator(seed)
    model = mlp(4, 48, 48, 1, activation=nn.Tanh)
    optimizer = Adam(model.parameters(), lr=3e-3)

    def value(state: Tensor) -> Tensor:
        return (2 * state[..., :1]).sin() + state[..., 1:2] * state[..., 2:3]

    held = torch.randn(300, 4, generator=g)
    store: list[Tensor] = []
    state = torch.zeros(4)
    with watch(model, optimizer, holdout=[(held, value(held))], loss=F.mse_loss) as w:
        for _ in range(350):
            state.mul_(0.8).add_(0.6 * torch.randn(4, generator=g))
            store.append(state)
            rows = torch.randint(len(store), (64,), generator=g)
            batch = torch.stack([store[row] for row in rows.tolist()])
            loss = F.mse_loss(model(batch), value(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(explained(model, held, value(held)), 0.4)


@fault("raw readings into a tanh network, recurrent", {*UNSCALED, "saturated_units"})
def raw_readings(watch: Watch, seed: int) -> Check:
    """Pressure in pascals and three temperatures in kelvin; the next hour's warmth is the target."""
    g = generator(seed)
    walk = torch.randn(1200, 13, 4, generator=g).cumsum(1) / 4
    raw = walk * torch.tensor([800.0, 8.0, 8.0, 8.0]) + torch.tensor([101_300.0, 288.0, 285.0, 290.0])
    data = split(raw[:, :12], walk[:, 12, 1:2])

    class Weather(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(4, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[1][0])

    model = Weather()
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=250, size=32, seed=seed), nn.MSELoss(),
        holdout=kept(data), loss=nn.MSELoss())  # fmt: skip
    return below(explained(model, *data[2:]), 0.3)
