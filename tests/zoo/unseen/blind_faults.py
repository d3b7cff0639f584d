"""Faults that no other case has, on other data and models: the data, the objective and what is evaluated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, fit, last, squares
from zoo.material import digits, pairs, rows_of
from zoo.models import VAE, mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.blind_material import (
    Bags,
    Forecast,
    Reader,
    Waves,
    bags,
    by_hand,
    generator,
    iris,
    sentences,
    split,
    waves,
)


def held(data: tuple[Tensor, ...], count: int = 200) -> TensorDataset:
    return TensorDataset(data[2][:count], data[3][:count])


class Tagger(nn.Module):
    def __init__(self, tags: int = 4) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(30, 24), nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


@fault("tags of the padding counted, bidirectional LSTM", {"padding_in_loss", "majority_guess"})
def padding_tags(watch: Watch, seed: int) -> Check:
    """Nine of ten positions are padding, whose tag is 0; the rest hardly counts."""
    g = generator(seed)
    tokens = torch.randint(1, 30, (1200, 40), generator=g)
    kept = torch.arange(40) < torch.randint(2, 6, (1200, 1), generator=g)
    tags = (tokens * 7 + tokens.roll(1, 1)) % 3 + 1
    tokens, tags = tokens * kept, tags * kept
    data, model = split(tokens, tags), Tagger()
    batches = pairs(*data[:2], steps=150, size=32, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=1e-3), batches, lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
        holdout=held(data), loss=lambda z, y: F.cross_entropy(z.transpose(1, 2), y))  # fmt: skip
    right = (model(data[2]).argmax(-1) == data[3])[data[2] > 0].float().mean()
    return below(float(right), 0.7)


@fault("sigmoid of a sigmoid, waves", {"double_softmax"})
def sigmoid_twice(watch: Watch, seed: int) -> Check:
    """The model ends in a sigmoid, and the loop applies another before binary_cross_entropy."""
    x, y, *rest = waves(seed=seed)
    model = nn.Sequential(Waves(1), nn.Sigmoid())
    target = (y == 0).float()[:, None]
    batches = pairs(x, target, steps=200, seed=seed)
    losses = fit(
        watch, model, Adam(model.parameters(), lr=3e-3), batches,
        lambda out, t: F.binary_cross_entropy(out.sigmoid(), t),
        holdout=TensorDataset(rest[0][:200], (rest[1][:200] == 0).float()[:, None]),
        loss=lambda out, t: F.binary_cross_entropy(out.sigmoid(), t),
    )  # fmt: skip
    return worse_than(last(losses), 0.5)


@fault("labels counted from one, iris", {"class_never_seen", "holdout_differs"})
def from_one(watch: Watch, seed: int) -> Check:
    """The training labels are those of a file that counts from 1; the holdout's were corrected."""
    data, model = iris(seed), mlp(4, 24, 4)
    batches = pairs(data[0], data[1] + 1, steps=200, size=16, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=5e-3), batches, holdout=held(data))
    return below(accuracy(model, *data[2:]), 0.3)


@fault("softmax over the batch, iris", {"double_softmax"})
def over_the_batch(watch: Watch, seed: int) -> Check:
    """dim=0 where dim=1 was meant."""
    data, model = iris(seed), mlp(4, 24, 3)
    batches = pairs(*data[:2], steps=200, size=16, seed=seed)
    losses = fit(
        watch, model, SGD(model.parameters(), lr=0.1), batches, lambda z, y: F.nll_loss(z.log_softmax(0), y),
        holdout=held(data),
    )  # fmt: skip
    return worse_than(last(losses), 1.3)


@fault("attention mask inverted, transformer", {"labels_unrelated"}, since=None)
def inverted_mask(watch: Watch, seed: int) -> Check:
    """What is padding is read, and the words are not."""
    tokens, label = sentences(seed=seed)
    data, model = split(tokens, label), Reader(inverted=True)
    short = data[0][(data[0] == 0).any(1)], data[1][(data[0] == 0).any(1)]
    batches = pairs(*short, steps=200, size=32, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=2e-3), batches, holdout=held(data))
    return below(accuracy(model, *data[2:]), 0.7)


class Leaky(nn.Module):
    """Convolutions whose padding is on both sides: each step sees the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 1, 5, padding=2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.transpose(1, 2)).transpose(1, 2)


@fault("convolution that sees the future, forecasting", {"copies_input"})
def future(watch: Watch, seed: int) -> Check:
    """A random walk cannot be foretold; here it is."""
    walk = torch.randn(600, 33, 1, generator=generator(seed))
    data, model = split(walk[:, :-1], walk[:, 1:]), Leaky()
    batches = pairs(*data[:2], steps=300, size=32, seed=seed)
    losses = fit(watch, model, Adam(model.parameters(), lr=5e-3), batches, squares, holdout=held(data), loss=F.mse_loss)
    return below(last(losses), 0.3)


@fault("each row standardised by itself, level of a signal", {"labels_unrelated"}, since=None)
def wrong_axis(watch: Watch, seed: int) -> Check:
    """What is to be told is how high a signal lies, and standardising by rows takes that away."""
    g = generator(seed)
    label = torch.randint(3, (1500,), generator=g)
    x = label[:, None] * 2.0 + torch.randn(1500, 24, generator=g)
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    data, model = split(x, label), mlp(24, 48, 3)
    batches = pairs(*data[:2], steps=200, size=32, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=1e-3), batches, holdout=held(data))
    return below(accuracy(model, *data[2:]), 0.5)


@fault("target among the inputs, table", {"shortcut", "holdout_differs", "not_generalising"}, since=None)
def leak(watch: Watch, seed: int) -> Check:
    """A column is filled in after the outcome is known; when the model is used, it is empty."""
    g = generator(seed)
    x = torch.randn(1600, 12, generator=g)
    label = (x[:, 0] * x[:, 1] > 0).long()
    x[:, 11] = 4.0 * label - 2
    data, model = split(x, label), mlp(12, 32, 2)
    data[2][:, 11] = 0
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=200, size=32, seed=seed),
        holdout=held(data, 400))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.75)


@fault("sorted by class, waves", {"sorted_data"}, since=10)
def sorted_classes(watch: Watch, seed: int) -> Check:
    """The loader does not shuffle, and the file is sorted."""
    data, model = waves(seed=seed), Waves()
    order = data[1].argsort(stable=True)
    x, y = data[0][order], data[1][order]
    batches = [(x[at : at + 32], y[at : at + 32]) for _ in range(6) for at in range(0, len(x) - 31, 32)]
    fit(watch, model, SGD(model.parameters(), lr=0.1, momentum=0.9), batches, holdout=held(data))
    return below(accuracy(model, *data[2:]), 0.6)


@fault("the generator seeded at every step, bags", {"duplicated_data", "overfitting"}, since=None)
def reseeded(watch: Watch, seed: int) -> Check:
    """The sampler draws the same three bags each time."""
    data, model = bags(seed=seed), Bags()

    def drawn() -> Tensor:
        return torch.randint(len(data[0]), (3,), generator=torch.Generator().manual_seed(seed))

    batches = ((data[0][rows], data[1][rows]) for rows in (drawn() for _ in range(300)))
    fit(watch, model, Adam(model.parameters(), lr=5e-3), batches, squares, holdout=held(data), loss=F.mse_loss)
    with torch.no_grad():
        off = float((model(data[2]) - data[3]).square().mean())
    return above(off, 0.03)


@fault("mirrored without the label, direction of a ramp", {"labels_unrelated", "label_noise"}, since=None)
def mirrored(watch: Watch, seed: int) -> Check:
    """Augmentation turns half of the rising signals into falling ones, and their labels stay."""
    g = generator(seed)
    label = torch.randint(2, (1500,), generator=g)
    ramp = torch.linspace(-1, 1, 32) * (2.0 * label[:, None] - 1)
    x = (ramp + 0.3 * torch.randn(1500, 32, generator=g))[:, None]
    data, model = split(x, label), Waves(2)
    turned = ((torch.where(torch.rand(len(a), 1, 1, generator=g) < 0.5, a.flip(2), a), b)
              for a, b in pairs(*data[:2], steps=250, size=32, seed=seed))  # fmt: skip
    fit(watch, model, Adam(model.parameters(), lr=1e-3), turned, holdout=held(data))
    return below(abs(accuracy(model, *data[2:]) - 0.5), 0.45)


@fault("KL weight of 200, variational autoencoder", {"posterior_collapse", "embedding_collapse"}, since=None)
def collapsed_posterior(watch: Watch, seed: int) -> Check:
    data, model = digits(), VAE()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=250, seed=seed):
            out, mean, log_variance = model(x)
            kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
            loss = F.mse_loss(out, x, reduction="none").sum(1).mean() + 200 * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        out = model(data[2])[0]
    return below(float(out.std(0).mean() / data[2].std(0).mean()), 0.2)


@fault("temperature of 10, contrastive pairs", {"temperature_too_high", "double_softmax"}, since=None)
def hot(watch: Watch, seed: int) -> Check:
    """0.1 was meant."""
    data, model = digits(), mlp(64, 64, 24)
    optimizer, losses = Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=200, size=64, seed=seed):
            one, two = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
            loss = F.cross_entropy(one @ two.T / 10, torch.arange(len(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(last(losses), 4.0)


@fault("labels of other waves, loss by hand", {"labels_unrelated"}, since=None)
def unrelated_by_hand(watch: Watch, seed: int) -> Check:
    data, model = waves(seed=seed), Waves()
    rows = torch.randperm(len(data[0]), generator=generator(seed))
    batches = pairs(data[0][rows], data[1], steps=200, size=32, seed=seed)
    fit(watch, model, Adam(model.parameters(), lr=1e-3), batches, by_hand, holdout=held(data))
    return below(accuracy(model, *data[2:]), 0.45)


@fault("a constant column divided by its deviation, table", {"data_not_finite", "nonfinite"})
def constant_column(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    x = torch.randn(800, 10, generator=g)
    label = (x[:, 0] + x[:, 1] > 0).long()
    x[:, 5] = 3.0
    x = (x - x.mean(0)) / x.std(0).where(torch.arange(10) != 5, torch.tensor(0.0))
    data, model = split(x, label), mlp(10, 24, 2)
    losses = fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=80, size=32, seed=seed),
                 holdout=held(data))  # fmt: skip
    return worse_than(last(losses), 0.6)


@fault("forecast against the series itself, GRU", {"copies_input"})
def same_step(watch: Watch, seed: int) -> Check:
    """The targets were not moved by a step: the model has to copy."""
    walk = torch.randn(600, 24, 1, generator=generator(seed)).cumsum(1) / 4
    data, model = split(walk, walk.clone()), Forecast()
    losses = fit(
        watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=250, size=32, seed=seed), squares,
        holdout=held(data), loss=F.mse_loss,
    )  # fmt: skip
    return below(last(losses), 0.1)


@fault("three batches again and again, sentences", {"duplicated_data", "overfitting"}, since=None)
def three_batches(watch: Watch, seed: int) -> Check:
    """islice(loader, 3) was left in from debugging."""
    tokens, label = sentences(seed=seed)
    data, model = split(tokens, label), Reader()
    few = list(rows_of(len(data[0]), steps=3, size=8, seed=seed))
    batches = [(data[0][rows], data[1][rows]) for _ in range(80) for rows in few]
    fit(watch, model, AdamW(model.parameters(), lr=2e-3), batches, holdout=held(data))
    return below(accuracy(model, *data[2:]), 0.95)
