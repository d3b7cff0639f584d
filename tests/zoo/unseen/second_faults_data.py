"""Faults of the second blind set: in the data, and in how it is given to the model."""

from __future__ import annotations

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, NAdam, RMSprop

from zoo.loops import accuracy, classes, explained, fit, squares, tokens
from zoo.material import pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.second_material import (
    brackets,
    glyphs,
    houses,
    kept,
    masks,
    moons,
    pictures,
    sorting,
    split,
)
from zoo.unseen.second_models import Encoder, Mixer, ResNet, Seq2Seq, UNet

SHIFTED = {"holdout_differs", "shortcut", "spurious_attribute", "not_generalising"}


@fault("augmentation in place that adds up, mixer", {"holdout_differs", "inputs_out_of_range", "unscaled_inputs"},
       since=None)  # fmt: skip
def adds_up(watch: Watch, seed: int) -> Check:
    """The slices are views of the data set: each epoch makes the pictures brighter than the last one did."""
    data, model = pictures(seed, noise=0.15), Mixer()
    x, y = data[0].clone(), data[1]
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for _ in range(16):
            for at in range(0, len(x), 64):
                batch, target = x[at : at + 64], y[at : at + 64]
                batch.mul_(1 + 0.8 * torch.rand(())).add_(0.5 * torch.randn(len(batch), 1, 1, 1))
                loss = classes(model(batch), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.6)


@fault("labels shuffled in every batch, residual network", {"labels_unrelated"}, since=None)
def shuffled_labels(watch: Watch, seed: int) -> Check:
    """The collate function sorts the pictures by size and forgets the labels; here a permutation does it."""
    data, model = pictures(seed), ResNet()
    batches = ((x, y[torch.randperm(len(y))]) for x, y in pairs(*data[:2], steps=200, size=32, seed=seed))
    fit(watch, model, SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True), batches, holdout=kept(data))
    return below(accuracy(model, *data[2:]), 0.5)


@fault("file sorted by price and not shuffled, houses", {"sorted_data"}, since=None)
def sorted_prices(watch: Watch, seed: int) -> Check:
    data, model = houses(seed), mlp(8, 64, 64, 1)
    order = data[1].squeeze(1).argsort()
    x, y = data[0][order], data[1][order]
    batches = [(x[at : at + 30], y[at : at + 30]) for _ in range(6) for at in range(0, len(x), 30)]
    fit(watch, model, RMSprop(model.parameters(), lr=2e-3), batches, squares, holdout=kept(data), loss=F.mse_loss)
    return below(explained(model, *data[2:]), 0.3)


@fault("minority repeated before the split, made table", {"holdout_overlap"}, since=None)
def repeated_before_split(watch: Watch, seed: int) -> Check:
    """The holdout holds copies of training rows: it is far better than rows that were never seen."""
    drawn = datasets.make_classification(1400, 20, n_informative=5, flip_y=0.25, weights=[0.8], random_state=seed)
    x, y = torch.tensor(drawn[0]).float(), torch.tensor(drawn[1])
    fresh, x, y = (x[1000:], y[1000:]), x[:1000], y[:1000]
    rare = (y == 1).nonzero().squeeze(1)
    rows = torch.cat([torch.arange(1000), rare.repeat(3)])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    data, model = split(x[rows], y[rows]), mlp(20, 128, 128, 2)
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=350, size=64, seed=seed),
        holdout=kept(data, 300))  # fmt: skip
    return above(accuracy(model, *data[2:]) - accuracy(model, *fresh), 0.08)


@fault("prices in units and a rate for ones, houses", {"learning_rate_too_low", "targets_out_of_range"}, since=None)
def prices(watch: Watch, seed: int) -> Check:
    """Neither the targets nor the last layer were scaled: after 300 steps the model still says a few thousand."""
    data, model = houses(seed, raw=True), mlp(8, 64, 64, 1)
    fit(watch, model, NAdam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=300, size=50, seed=seed), squares,
        holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.0)


@fault("a picture of the wrong bytes, U-Net", {"bad_batch", "data_not_finite", "inputs_out_of_range", "loss_spike",
       "nonfinite"}, since=90)  # fmt: skip
def wrong_bytes(watch: Watch, seed: int) -> Check:
    """A file of whole numbers was read as floats: one picture in step 90 is some 1e9 bright."""
    data, model = masks(seed), UNet()
    optimizer, losses = SGD(model.parameters(), lr=0.3, momentum=0.9), []
    with watch(model, optimizer, holdout=kept(data), loss=F.binary_cross_entropy_with_logits) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=200, size=24, seed=seed), 1):
            given = torch.cat([x[:1] * 1e9, x[1:]]) if number == 90 else x
            loss = F.binary_cross_entropy_with_logits(model(given), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(losses[-1], 0.3)


@fault("one annotator of three answers by chance, transformer", {"label_noise"}, since=None)
def chance_annotator(watch: Watch, seed: int) -> Check:
    rows, label = brackets(seed, 700)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    data, model = split(rows[order], label[order]), Encoder(width=48)
    drawn = torch.rand(len(data[1])) < 0.33
    said = torch.where(drawn, torch.randint(2, (len(data[1]),)), data[1])
    fit(watch, model, AdamW(model.parameters(), lr=2e-3), pairs(data[0], said, steps=300, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.97)


class Levels(nn.Module):
    """A GRU over series of three channels that come with time first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        given = x.reshape(x.shape[1], x.shape[0], 3)  # transpose(0, 1) was meant
        return self.head(self.rnn(given)[0].mean(1))


@fault("reshape in place of a transpose, GRU", {"labels_unrelated"}, since=None)
def reshaped(watch: Watch, seed: int) -> Check:
    """Batch and time are mixed up: what is called an example holds pieces of many."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(4, (1600,), generator=g)
    t = torch.arange(20) / 20
    phase = torch.rand(1600, 3, 1, generator=g)
    x = (6.28 * ((1 + label[:, None, None]) * t + phase)).sin() + 0.1 * torch.randn(1600, 3, 20, generator=g)
    data, model = split(x.permute(0, 2, 1), label), Levels()
    batches = ((a.transpose(0, 1), b) for a, b in pairs(*data[:2], steps=250, size=40, seed=seed))
    taken = fit(watch, model, AdamW(model.parameters(), lr=3e-3), batches)
    return worse_than(sum(taken[-20:]) / 20, 1.1)


@fault("the decoder is given its own answer, GRU", {"copies_input", "labels_shifted"}, since=None)
def own_answer(watch: Watch, seed: int) -> Check:
    """Teacher forcing without the shift: the loss vanishes, and what is generated is wrong."""
    x, y = sorting(seed)
    data, model = split(x, y), Seq2Seq()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for source, target in pairs(*data[:2], steps=300, size=50, seed=seed):
            loss = tokens(model(source, target), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(float((model.generate(data[2], 6) == data[3]).double().mean()), 0.5)


@fault("a mark of the class in training pictures, residual network", SHIFTED, since=None)
def marked(watch: Watch, seed: int) -> Check:
    """Each class was photographed at another place, whose stamp is in the corner; those held out have none."""
    data, model = pictures(seed, noise=0.6), ResNet()
    x = data[0].clone()
    x[torch.arange(len(x)), 0, 0, data[1] * 3] = 6.0
    fit(watch, model, AdamW(model.parameters(), lr=2e-3, weight_decay=0.05),
        pairs(x, data[1], steps=200, size=32, seed=seed), holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.7)


@fault("colours in another order in the holdout, residual network", {"holdout_differs"}, since=None)
def other_colours(watch: Watch, seed: int) -> Check:
    """One reader gives red first, the other blue; the classes are half told by colour."""
    x, kind, mask = glyphs(1600, seed=seed)
    colour = torch.tensor([[1.0, 0.7, 0.2], [0.9, 0.2, 0.1], [0.3, 0.6, 0.1], [0.8, 0.5, 0.6]])[kind]
    rgb = mask * colour[:, :, None, None] + 0.15 * torch.randn(len(x), 3, 12, 12)
    rgb[:, 0] += 0.5  # a warm light
    data, model = split(rgb, kind), ResNet(3, width=8)
    data = (data[0], data[1], data[2].flip(1), data[3])
    fit(watch, model, RMSprop(model.parameters(), lr=2e-3), pairs(*data[:2], steps=200, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.6)


@fault("forty sentences and two hundred epochs, transformer", {"memorised", "not_generalising", "overfitting"},
       since=None)  # fmt: skip
def forty(watch: Watch, seed: int) -> Check:
    """Six hundred words, each of one of two subjects; of all texts, forty were labelled."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (440,), generator=g)
    own = torch.rand(440, 12, generator=g) < 0.8
    rows = torch.randint(300, (440, 12), generator=g) + 300 * torch.where(own, label[:, None], 1 - label[:, None])
    data, model = split(rows, label, 1 / 11), Encoder(600)
    fit(watch, model, AdamW(model.parameters(), lr=1e-3), pairs(*data[:2], steps=400, size=20, seed=seed),
        holdout=kept(data, 400))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.8)


@fault("rows off by one after a join, attention over columns", {"labels_unrelated"}, since=None)
def other_file(watch: Watch, seed: int) -> Check:
    """The table was joined by row number after one of the two had been filtered: rows are off by one."""
    data = moons(seed)

    class Columns(nn.Module):
        """A token for each column."""

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.randn(2, 16)), nn.Parameter(torch.randn(2, 16))
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
            self.head = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x[..., None] * self.scale + self.shift).mean(1))

    model = Columns()
    joined = data[0][:-1], data[1][1:]
    fit(watch, model, AdamW(model.parameters(), lr=2e-3), pairs(*joined, steps=250, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.7)
