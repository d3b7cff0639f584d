"""Faults of the fifth blind set: data that are wrong in themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, TensorDataset

from zoo.loops import accuracy, explained, fit, squares
from zoo.material import pairs, rows_of
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.fifth_material import flats, generator, kept, letters_to, spiral, stains
from zoo.unseen.fifth_models import Columns, UNet, WordConv, Words, covered


@fault("masks in another order of files, U-Net", {"labels_unrelated"}, wrong={"learning_rate_too_low", "vanishing"})
def other_order(watch: Watch, seed: int) -> Check:
    """Pictures are listed by number and masks by name: 10 comes before 2."""
    data, model = stains(seed), UNet()
    masks = data[1][torch.tensor(sorted(range(len(data[1])), key=str))]
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(data[0], masks, steps=200, size=25, seed=seed),
        F.binary_cross_entropy_with_logits, holdout=kept(data, 100), loss=nn.BCEWithLogitsLoss())  # fmt: skip
    return below(covered(model, *data[2:]), 0.5)


@fault("two labels of five by chance, convolutions over words", {"label_noise"})
def by_chance(watch: Watch, seed: int) -> Check:
    """A crowd that was paid by the piece; what is held out was labelled with care."""
    data, model, g = letters_to(seed), WordConv(), generator(seed)
    chance = torch.rand(len(data[1]), generator=g) < 0.4
    labels = torch.where(chance, torch.randint(4, data[1].shape, generator=g), data[1])
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(data[0], labels, steps=300, size=32, seed=seed),
        holdout=kept(data))  # fmt: skip
    return below(accuracy(model, *data[2:]), 0.8)


@fault("the answers of a category for the category, attention over columns",
       {"holdout_differs", "not_generalising", "shortcut", "spurious_attribute"}, since=None,
       wrong={"overfitting"})  # fmt: skip
def answers_for_category(watch: Watch, seed: int) -> Check:
    """Streets are replaced by the mean rent of their flats, and most have one flat: a column tells the rent. Streets of
    the holdout are mostly new, and get the mean of all."""
    (x, y, held, rent), g = flats(seed), generator(seed)
    street, other = torch.randint(6000, (len(x),), generator=g), torch.randint(6000, (len(held),), generator=g)
    count = torch.bincount(street, minlength=6000)
    mean = torch.zeros(6000).index_add(0, street, y[:, 0]) / count.clamp(min=1)
    x, held = torch.cat([x, mean[street, None]], 1), torch.cat([held, mean[other, None]], 1)
    model = Columns(11, 1)
    fit(watch, model, AdamW(model.parameters(), lr=2e-3), pairs(x, y, steps=300, size=40, seed=seed), squares,
        holdout=TensorDataset(held[:200], rent[:200]), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, held, rent), 0.6)


@fault("recordings of the same people on both sides, convolutions over time",
       {"duplicated_data", "holdout_overlap", "memorised", "shortcut", "spurious_attribute"}, since=None)  # fmt: skip
def same_people(watch: Watch, seed: int) -> Check:
    """Whether somebody is ill is asked of forty voices, thirty recordings each, split by recording: the model knows the
    voices, and nothing of the illness."""
    g = generator(seed)

    def recordings(people: int) -> tuple[Tensor, Tensor]:
        ill = torch.arange(people) % 2
        voice = torch.randn(people, 1, 32, generator=g) + 0.15 * ill[:, None, None]
        who = torch.arange(people).repeat(30)
        return voice[who] + 0.15 * torch.randn(len(who), 1, 32, generator=g), ill[who]

    (x, y), new = recordings(40), recordings(40)
    order = torch.randperm(1200, generator=g)
    x, y = x[order], y[order]
    model = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, 2, 2), nn.ReLU(),
                          nn.Flatten(), nn.Linear(256, 2))  # fmt: skip
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(x[:900], y[:900], steps=250, size=36, seed=seed),
        holdout=TensorDataset(x[900:1100], y[900:1100]))  # fmt: skip
    return above(accuracy(model, x[900:], y[900:]) - accuracy(model, *new), 0.25)


@fault("folders read one after the other, convolutions over words", {"sorted_data"})
def folders(watch: Watch, seed: int) -> Check:
    """A folder for each kind, and a loader that does not shuffle."""
    data, model = letters_to(seed), WordConv()
    order = data[1].argsort(stable=True)
    optimizer = Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(data[0][order], data[1][order]), 30, shuffle=False)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for epoch in range(6):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss, epoch=epoch)
    return below(accuracy(model, *data[2:]), 0.6)


@fault("the logarithm of counts that may be none, table", {"bad_batch", "data_not_finite", "nonfinite"}, since=None)
def log_of_none(watch: Watch, seed: int) -> Check:
    """`log` where `log1p` was meant: one count in a few hundred is zero."""
    (x, y, held, other), g = flats(seed), generator(seed)
    visits, later = (torch.poisson((1.8 + 0.3 * one).exp(), generator=g) for one in (y, other))
    model = Columns(10, 1)
    losses = fit(watch, model, AdamW(model.parameters(), lr=2e-3),
                 pairs(x, visits.log(), steps=200, size=32, seed=seed), squares,
                 holdout=TensorDataset(held[:200], later[:200].log()), loss=F.mse_loss)  # fmt: skip
    return worse_than(losses[-1], 5.0)


@fault("the time of the noise from 0 to 1000, diffusion", {"inputs_out_of_range", "unscaled_inputs"})
def time_as_it_is(watch: Watch, seed: int) -> Check:
    """Beside two numbers of about one stands a third of some hundreds."""
    points, model = spiral(seed), mlp(3, 96, 96, 2, activation=nn.SiLU)
    share = torch.linspace(1, 0.02, 1001).square()
    optimizer = Adam(model.parameters(), lr=3e-3)

    def error(points: Tensor) -> Tensor:
        time, noise = torch.randint(1, 1001, (len(points), 1)), torch.randn(len(points), 2)
        seen = share[time].sqrt() * points + (1 - share[time]).sqrt() * noise
        return F.mse_loss(model(torch.cat([seen, time.float()], 1)), noise)

    with watch(model, optimizer) as w:
        for rows in rows_of(len(points), steps=350, size=128, seed=seed):
            loss = error(points[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float(error(spiral(seed + 30, 6000))), 0.38)


@fault("two pixels in a hundred are stained, U-Net", {"majority_guess"})
def two_in_a_hundred(watch: Watch, seed: int) -> Check:
    """To call everything clean is right nearly everywhere, and nothing weighs the rest."""
    data, model = stains(seed, radius=(0.8, 1.2)), UNet()
    fit(watch, model, SGD(model.parameters(), lr=0.02, momentum=0.9), pairs(*data[:2], steps=220, size=25, seed=seed),
        F.binary_cross_entropy_with_logits, holdout=kept(data, 100), loss=nn.BCEWithLogitsLoss())  # fmt: skip
    return below(covered(model, *data[2:]), 0.15)


@fault("rents in euros, attention over columns", {"learning_rate_too_low", "targets_out_of_range"})
def in_euros(watch: Watch, seed: int) -> Check:
    """A rate for numbers of about one, and answers of a thousand."""
    data, model = flats(seed), Columns(10, 1)
    euros = 950 + 300 * data[1], 950 + 300 * data[3]
    fit(watch, model, AdamW(model.parameters(), lr=2e-3), pairs(data[0], euros[0], steps=300, size=40, seed=seed),
        squares, holdout=TensorDataset(data[2][:200], euros[1][:200]), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, data[2], euros[1]), 0.4)


@fault("a text of which cleaning left nothing, transformer", {"bad_batch", "data_not_finite", "nonfinite"}, since=None)
def left_nothing(watch: Watch, seed: int) -> Check:
    """All its words are padding: the mean over the others is nought by nought."""
    data, model = letters_to(seed), Words()
    texts, g = data[0].clone(), generator(seed)
    texts = texts * (torch.arange(12) < torch.randint(4, 13, (len(texts), 1), generator=g))
    texts[700] = 0
    losses = fit(watch, model, AdamW(model.parameters(), lr=2e-3), pairs(texts, data[1], steps=200, size=40, seed=seed),
                 holdout=kept(data))  # fmt: skip
    return worse_than(losses[-1], 5.0)
