"""Faults of the fourth blind set: data, how they are cut and what is done to them on the way."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.data import DataLoader, Dataset, TensorDataset

from zoo.loops import accuracy, explained, fit, squares, tokens
from zoo.material import digits, letters, pairs, rows_of
from zoo.models import LSTM, cnn, mlp
from zoo.registry import Check, Watch, above, below, fault
from zoo.unseen.fourth_material import Towers, generator, houses, kept


@fault("the mean taken off in bytes, CNN", {"holdout_differs", "not_generalising"}, since=None, wrong={"overfitting"})
def in_bytes(watch: Watch, seed: int) -> Check:
    """What is darker than the mean wraps round to nearly white; the held-out pictures are taken in floats."""
    data, model = digits(images=True), cnn()
    raw = (255 * data[0]).byte()
    mean = raw.float().mean().byte()
    train, held = (raw - mean).float() / 255, (255 * data[2] - mean) / 255
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(train, data[1], steps=200, size=50, seed=seed),
        holdout=TensorDataset(held, data[3]))  # fmt: skip
    return below(accuracy(model, held, data[3]), 0.7)


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels, self.names = images, labels, [str(name) for name in range(10)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index % len(self.names)], self.labels[index]


@fault("pictures looked up by the number of classes, CNN", {"duplicated_data", "label_noise", "labels_unrelated"})
def wrong_length(watch: Watch, seed: int) -> Check:
    """The modulus is the wrong length: ten pictures come with everybody's labels."""
    data, model = digits(images=True), cnn()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Pictures(*data[:2]), 64, shuffle=True)
    with watch(model, optimizer, holdout=TensorDataset(*data[2:])) as w:
        for epoch in range(9):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss, epoch=epoch)
    return below(accuracy(model, *data[2:]), 0.4)


@fault("missing prices filled with zero, houses",
       {"holdout_differs", "label_noise", "not_generalising", "targets_out_of_range"},
       wrong={"overfitting"})  # fmt: skip
def filled(watch: Watch, seed: int) -> Check:
    """A third of the training prices are not known and become zero before they are scaled."""
    data, model = houses(seed), mlp(8, 64, 64, 1)
    euros = 300 + 60 * data[1]
    euros[torch.rand(len(euros), generator=generator(seed)) < 0.33] = 0
    mean, spread = euros.mean(), euros.std()
    held = (300 + 60 * data[3] - mean) / spread
    fit(watch, model, AdamW(model.parameters(), lr=2e-3),
        pairs(data[0], (euros - mean) / spread, steps=250, size=48, seed=seed), squares,
        holdout=TensorDataset(data[2], held), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, data[2], held), 0.3)


@fault("noise for bytes on pictures from 0 to 1, CNN",
       {"holdout_differs", "inputs_out_of_range", "labels_unrelated", "unscaled_inputs"})  # fmt: skip
def loud(watch: Watch, seed: int) -> Check:
    """An augmentation of another project: a deviation of 25 was meant for 0 to 255."""
    data, model = digits(images=True), cnn()

    def augmented() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in pairs(*data[:2], steps=220, size=50, seed=seed):
            yield x + 25 * torch.randn_like(x), y

    fit(watch, model, RMSprop(model.parameters(), lr=1e-3), augmented(), holdout=kept(data))
    return below(accuracy(model, *data[2:]), 0.6)


@fault("captions in the order of their names, two towers", {"labels_unrelated"})
def by_name(watch: Watch, seed: int) -> Check:
    """The captions' files are sorted as text (1, 10, 100, 2, …) and the pictures' as numbers."""
    data, model, g = digits(), Towers(60), generator(seed)
    words = torch.cat([10 * torch.randint(1, 6, (1397, 3), generator=g) + torch.randint(10, (1397, 3), generator=g),
                       data[1][:, None]], 1) % 60  # fmt: skip
    words = words[torch.tensor(sorted(range(1397), key=str))]
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as w:
        for rows in rows_of(1397, steps=250, size=32, seed=seed):
            near = model(data[0][rows], words[rows])
            loss = (F.cross_entropy(near, torch.arange(32)) + F.cross_entropy(near.T, torch.arange(32))) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        near = model(data[2], torch.arange(10)[:, None])
    return below(float((near.argmax(1) == data[3]).double().mean()), 0.35)


@fault("half of the digits spelled in a second way, MLP", {"label_noise"})
def two_spellings(watch: Watch, seed: int) -> Check:
    """`three` and `Three` became two classes, for five of the digits."""
    data, model = digits(), mlp(64, 64, 15)
    g = generator(seed)
    spelled = [y + 10 * ((y < 5) & (torch.rand(len(y), generator=g) < 0.5)) for y in (data[1], data[3])]
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(data[0], spelled[0], steps=300, size=50, seed=seed),
        holdout=TensorDataset(data[2], spelled[1]))  # fmt: skip
    return below(accuracy(model, data[2], spelled[1]), 0.85)


@fault("windows that overlap split by chance, LSTM", {"duplicated_data", "holdout_overlap", "memorised"}, since=None)
def windows(watch: Watch, seed: int) -> Check:
    """Each held-out window shares all but one of its letters with a window that was trained on."""
    text = letters()[:1200]
    cut = text.unfold(0, 25, 1)
    cut = cut[torch.randperm(len(cut), generator=generator(seed))]
    train, held, new = cut[:900], cut[900:], letters()[50_000:56_000].unfold(0, 25, 25)
    model = LSTM(96)
    fit(watch, model, Adam(model.parameters(), lr=1e-2),
        pairs(train[:, :-1], train[:, 1:], steps=200, size=48, seed=seed), tokens,
        holdout=TensorDataset(held[:, :-1].clone(), held[:, 1:].clone()), clip=1.0)  # fmt: skip
    with torch.no_grad():
        seen, unseen = (float(tokens(model(rows[:, :-1]), rows[:, 1:])) for rows in (held, new))
    return above(unseen - seen, 0.8)


@fault("the dearest houses held out, sorted file",
       {"holdout_differs", "not_generalising", "sorted_data", "targets_out_of_range"}, since=None,
       wrong={"overfitting"})  # fmt: skip
def dearest(watch: Watch, seed: int) -> Check:
    """The file is sorted by price and its last quarter is the holdout."""
    a, b, c, d = houses(seed)
    x, y = torch.cat([a, c]), torch.cat([b, d])
    order = y.squeeze(1).argsort()
    x, y, model = x[order], y[order], mlp(8, 64, 1)
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(x[:1200], y[:1200], steps=250, size=50, seed=seed),
        squares, holdout=DataLoader(TensorDataset(x[1200:], y[1200:]), 100), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, x[1200:], y[1200:]), 0.7)


@fault("rows shuffled without their labels after the first epoch, MLP",
       {"label_noise", "labels_unrelated", "loss_spike"}, since=29, wrong={"overfitting"})  # fmt: skip
def without_labels(watch: Watch, seed: int) -> Check:
    """`shuffle(x)` at the end of an epoch, and no `shuffle(y)`."""
    data, model, g = digits(), mlp(64, 48, 10), generator(seed)
    x, y = data[0][:1372], data[1][:1372]
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for _ in range(12):
            for a, b in zip(x.split(49), y.split(49), strict=True):
                loss = F.cross_entropy(model(a), b)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
            x = x[torch.randperm(len(x), generator=g)]
    return below(accuracy(model, *data[2:]), 0.7)


@fault("ink is bright in the second file, CNN",
       {"bad_batch", "holdout_differs", "loss_spike", "not_generalising", "sorted_data"}, since=131,
       wrong={"overfitting"})  # fmt: skip
def second_file(watch: Watch, seed: int) -> Check:
    """The files are read one after the other, and from the second on the pictures are negatives."""
    data, model = digits(images=True), cnn()

    def files() -> Iterator[tuple[Tensor, Tensor]]:
        yield from pairs(data[0][:700], data[1][:700], steps=130, size=50, seed=seed)
        yield from pairs(1 - data[0][700:], data[1][700:], steps=130, size=50, seed=seed)

    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), files(), holdout=kept(data))
    return below(accuracy(model, *data[2:]), 0.75)
