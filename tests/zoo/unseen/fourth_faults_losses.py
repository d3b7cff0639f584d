"""Faults of the fourth blind set: losses, and what they are given."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils.data import TensorDataset

from zoo.loops import accuracy, fit
from zoo.material import digits, pairs, rows_of
from zoo.models import cnn, mlp
from zoo.registry import Check, Watch, above, below, fault, worse_than
from zoo.unseen.fourth_material import Forecaster, apart, crescents, houses, kept, offers, tides, trades


@fault("distilled at a temperature of 20 without its square, CNN to MLP",
       {"learning_rate_too_low", "temperature_too_high"})  # fmt: skip
def without_square(watch: Watch, seed: int) -> Check:
    """The slopes of softened answers are 400 times smaller, and nothing makes up for it."""
    data, teacher, model = digits(images=True), cnn(), nn.Sequential(nn.Flatten(), mlp(64, 64, 10))
    first = Adam(teacher.parameters(), lr=3e-3)
    for x, y in pairs(*data[:2], steps=100, size=50, seed=seed):
        first.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        first.step()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, _ in pairs(*data[:2], steps=200, size=50, seed=seed):
            with torch.no_grad():
                soft = (teacher(x) / 20).softmax(1)
            loss = F.kl_div((model(x) / 20).log_softmax(1), soft, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.8)


@fault("the maker is told that its points are false, crescents", {"loss_maximised", "zero_gradients"}, where="maker")
def told_false(watch: Watch, seed: int) -> Check:
    """Its labels were copied from the judge's line: it learns to be found out."""
    data = crescents(seed)
    players = nn.ModuleDict({"maker": mlp(4, 48, 48, 2), "judge": mlp(2, 48, 48, 1)})
    maker, judge = players["maker"], players["judge"]
    of_maker, of_judge = Adam(maker.parameters(), lr=1e-3), Adam(judge.parameters(), lr=1e-3)
    true, false = torch.ones(64, 1), torch.zeros(64, 1)
    with watch(players, [of_judge, of_maker]) as w:
        for rows in rows_of(len(data), steps=250, size=64, seed=seed):
            made = maker(torch.randn(64, 4))
            judged = F.binary_cross_entropy_with_logits(judge(data[rows]), true)
            judged = judged + F.binary_cross_entropy_with_logits(judge(made.detach()), false)
            of_judge.zero_grad()
            judged.backward()
            of_judge.step()
            fooled = F.binary_cross_entropy_with_logits(judge(made), false)
            of_maker.zero_grad()
            fooled.backward()
            of_maker.step()
            w.log(loss=judged, maker=fooled)
    with torch.no_grad():
        return above(apart(maker(torch.randn(500, 4)), data), 1.0)


@fault("the far one given as the near one, triplets", {"embedding_collapse", "labels_unrelated", "loss_maximised"})
def exchanged(watch: Watch, seed: int) -> Check:
    """`triplet_margin_loss` takes anchor, positive, negative."""
    data, model = digits(), mlp(64, 64, 16)
    optimizer = RMSprop(model.parameters(), lr=1e-3)

    def triplets(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        same = (y[:, None] == y).float() - torch.eye(len(y))
        keep = same.sum(1) > 0
        near = same[keep].multinomial(1).squeeze(1)
        far = (y[keep][:, None] != y).float().multinomial(1).squeeze(1)
        return x[keep], x[near], x[far]

    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=220, size=64, seed=seed):
            anchor, near, far = (F.normalize(model(part), dim=1) for part in triplets(x, y))
            loss = F.triplet_margin_loss(anchor, far, near, margin=0.5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        anchor, near, far = (F.normalize(model(part), dim=1) for part in triplets(*data[2:]))
    return below(float(((anchor - near).norm(dim=1) < (anchor - far).norm(dim=1)).double().mean()), 0.6)


@fault("a column less a row by hand, GRU", {"targets_broadcast"})
def column_less_row(watch: Watch, seed: int) -> Check:
    data, model = tides(seed), Forecaster()
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=220, size=40, seed=seed):
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        left = F.mse_loss(model(data[2]).squeeze(1), data[3]) / data[3].var()
    return above(float(left), 0.6)


@fault("sign of the spread in a likelihood, houses", {"diverging", "exploding", "loss_maximised", "nonfinite"})
def sign_of_spread(watch: Watch, seed: int) -> Check:
    """Half the log variance is taken off in place of added: the surer way to a small loss is to be unsure."""
    data, model = houses(seed), mlp(8, 64, 64, 2)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=50, seed=seed):
            mean, log_variance = model(x).split(1, 1)
            loss = (0.5 * (y - mean) ** 2 / log_variance.exp() - 0.5 * log_variance).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        left = F.mse_loss(model(data[2])[:, :1], data[3]) / data[3].var()
    return worse_than(float(left), 0.5)


@fault("focal weight of the easy ones, CNN", {"loss_maximised"})
def easy_ones(watch: Watch, seed: int) -> Check:
    """p² in place of (1 − p)²: where p is small, the loss falls with p."""
    data, model = digits(images=True), cnn()
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=200, size=50, seed=seed):
            log_p = model(x).log_softmax(1).gather(1, y[:, None])
            loss = (-(log_p.exp() ** 2) * log_p).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return below(accuracy(model, *data[2:]), 0.3)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.trade, self.wage = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.trade(h), self.wage(h)


@fault("wages in euros beside a class, two heads", {"clipped_hard", "targets_out_of_range"})
def in_euros(watch: Watch, seed: int) -> Check:
    """The squares of the one drown the other, and the clip leaves next to nothing of both."""
    data, model = trades(seed), TwoHeads()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=50, seed=seed):
            trade, wage = model(x)
            euros = 3000 + 800 * (x[:, :1] - x[:, 1:2])
            loss = F.cross_entropy(trade, y) + F.mse_loss(wage, euros)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float((model(data[2])[0].argmax(1) == data[3]).double().mean()), 0.6)


@fault("the spread of a single reward, policy", {"bad_batch", "data_not_finite", "nonfinite"}, since=None)
def of_one(watch: Watch, seed: int) -> Check:
    """A round's choices go by 32, and sooner or later one is left over: its standard deviation is not a number."""
    policy = mlp(6, 32, 3)
    optimizer = Adam(policy.parameters(), lr=3e-3)
    with watch(policy, optimizer) as w:
        for turn in range(45):
            x, best = offers(1000 * seed + turn, 80 + (7 * turn + seed) % 40)
            with torch.no_grad():
                chosen = torch.distributions.Categorical(logits=policy(x)).sample()
            rewards = (chosen == best).float() + 0.3 * torch.randn(len(x))
            for part in torch.randperm(len(x)).split(32):
                r = rewards[part]
                gain = (r - r.mean()) / (r.std() + 1e-8)
                said = torch.distributions.Categorical(logits=policy(x[part]))
                loss = -(said.log_prob(chosen[part]) * gain).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss, reward=r.mean())
                if loss.isnan():
                    return worse_than(float(loss.detach()), 5.0)
    return worse_than(float(loss.detach()), 5.0)


@fault("every label of several in one softmax, MLP", {"double_softmax", "targets_out_of_range"})
def one_softmax(watch: Watch, seed: int) -> Check:
    """Six labels an example are read as shares of one: `cross_entropy` takes them, and answers are cut at a half."""
    data, model = houses(seed), mlp(8, 64, 6)
    labels = [torch.cat([x[:, :5] > 0, y > 0], 1).float() for x, y in (data[:2], data[2:])]
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(data[0], labels[0], steps=220, size=50, seed=seed),
        F.cross_entropy, holdout=TensorDataset(data[2], labels[1]), loss=nn.BCEWithLogitsLoss())  # fmt: skip
    with torch.no_grad():
        return below(float(((model(data[2]).softmax(1) > 0.5) == labels[1]).double().mean()), 0.75)
