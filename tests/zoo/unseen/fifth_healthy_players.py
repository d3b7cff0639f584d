"""Sound trainings of the fifth blind set: players, policies, views and graphs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from zoo.material import digits, pairs, rows_of
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.fifth_material import SEEDS, apart, generator, papers, spiral, walk


@healthy("out of a corridor by whole walks, losses without a trend", seeds=SEEDS)
def whole_walks(watch: Watch, seed: int) -> Check:
    """What a walk brought, less the mean of the others: the loss jumps about nothing, and says little."""
    policy, g = mlp(8, 32, 2), generator(seed)
    optimizer = Adam(policy.parameters(), lr=1e-2)
    with watch(policy, optimizer) as w:
        for _ in range(150):
            state, going = torch.randint(1, 7, (24,), generator=g), torch.ones(24, dtype=torch.bool)
            said, paid = torch.zeros(24), torch.zeros(24)
            for _ in range(14):
                choice = torch.distributions.Categorical(logits=policy(F.one_hot(state, 8).float()))
                move = choice.sample()
                after, reward, over = walk(state, move)
                said, paid = said + choice.log_prob(move) * going, paid + (reward - 0.02) * going
                state, going = torch.where(going, after, state), going & ~over
            loss = -(said * (paid - paid.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, reward=paid.mean())
    with torch.no_grad():
        return above(float(policy(torch.eye(8))[1:7].softmax(1)[:, 1].mean()), 0.85)


@healthy("points of a spiral, players of least squares", seeds=SEEDS)
def least_squares(watch: Watch, seed: int) -> Check:
    """Neither loss falls for long: each player undoes what the other learned."""
    data = spiral(seed)
    players = nn.ModuleDict({"maker": mlp(6, 64, 64, 2), "judge": mlp(2, 64, 64, 1, activation=nn.SiLU)})
    maker, judge = players["maker"], players["judge"]
    of_maker, of_judge = (Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.99)) for part in (maker, judge))
    with watch(players, [of_judge, of_maker]) as w:
        for rows in rows_of(len(data), steps=400, size=128, seed=seed):
            made = maker(torch.randn(128, 6))
            judged = (judge(data[rows]) - 1).square().mean() + judge(made.detach()).square().mean()
            of_judge.zero_grad()
            judged.backward()
            of_judge.step()
            fooled = (judge(made) - 1).square().mean()
            of_maker.zero_grad()
            fooled.backward()
            of_maker.step()
            w.log(loss=judged, maker=fooled)
    with torch.no_grad():
        made = maker(torch.randn(400, 6))
    return below(max(apart(data, made), apart(made, data)), 0.35)


class Encoder(nn.Module):
    """A digit as a direction."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
                                  nn.Flatten(), nn.Linear(384, width))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.body(x), dim=1)


def by_nearest(code: Tensor, labels: Tensor, held: Tensor, wanted: Tensor) -> float:
    """How many of the held-out have the label of the nearest code."""
    return float((labels[(held @ code.T).argmax(1)] == wanted).double().mean())


@healthy("digits, all of the same kind draw each other near", seeds=SEEDS)
def of_the_same_kind(watch: Watch, seed: int) -> Check:
    """The loss ends at the logarithm of how many of a kind there are in a batch."""
    data, model = digits(images=True), Encoder()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=64, seed=seed):
            code = model(x)
            near = (code @ code.T / 0.2).masked_fill(torch.eye(64, dtype=torch.bool), -1e9).log_softmax(1)
            same = ((y[:, None] == y) & ~torch.eye(64, dtype=torch.bool)).float()
            loss = -((near * same).sum(1) / same.sum(1).clamp(min=1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(by_nearest(model(data[0]), data[1], model(data[2]), data[3]), 0.93)


class Attending(nn.Module):
    """Two layers in which a paper attends to those that it cites."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, width), nn.Linear(width, 4)
        self.asks = nn.ParameterList(nn.Parameter(0.3 * torch.randn(2, size)) for size in (width, 4))

    def forward(self, words: Tensor, cites: Tensor) -> Tensor:
        x = F.dropout(words, 0.4, self.training)
        for layer, ask in zip((self.first, self.second), self.asks, strict=True):
            x = layer(x)
            score = F.leaky_relu((x @ ask[0])[:, None] + x @ ask[1], 0.2)
            x = score.masked_fill(~cites, -1e9).softmax(1) @ x
            x = F.elu(x) if layer is self.first else x
        return x


@healthy("subjects of papers, attention to those they cite", seeds=SEEDS)
def cited(watch: Watch, seed: int) -> Check:
    """The whole graph at every step, and always the same eighty labels."""
    near, words, subject = papers(seed)
    model = Attending()
    optimizer, known = Adam(model.parameters(), lr=0.01, weight_decay=5e-4), torch.arange(240) < 80
    with watch(model, optimizer) as w:
        for _ in range(150):
            loss = F.cross_entropy(model(words, near > 0)[known], subject[known])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    model.eval()
    with torch.no_grad():
        said = model(words, near > 0).argmax(1)
    return above(float((said == subject)[~known].double().mean()), 0.7)


@healthy("how hard to throw, two critics and copies that lag", seeds=SEEDS)
def how_hard(watch: Watch, seed: int) -> Check:
    """The actor's loss is what the critics think of it, below zero, and falls as they learn."""
    model = nn.ModuleDict({"actor": mlp(3, 32, 1), "one": mlp(4, 48, 1), "two": mlp(4, 48, 1)})
    lags, g = copy.deepcopy(model), generator(seed)
    of_actor = Adam(model["actor"].parameters(), lr=2e-3)
    of_critics = Adam([*model["one"].parameters(), *model["two"].parameters()], lr=4e-3)

    def paid(x: Tensor, a: Tensor) -> Tensor:
        return 1 - (a - (x[:, :1] + 0.5 * x[:, 1:2] * x[:, 2:]).tanh()).square()

    with watch(model, [of_critics, of_actor]) as w:
        for _ in range(350):
            x, after = torch.randn(64, 3, generator=g), torch.randn(64, 3, generator=g)
            with torch.no_grad():
                act = (model["actor"](x).tanh() + 0.4 * torch.randn(64, 1, generator=g)).clamp(-1, 1)
                then = torch.cat([after, lags["actor"](after).tanh()], 1)
                goal = paid(x, act) + 0.5 * torch.minimum(lags["one"](then), lags["two"](then))
            pair = torch.cat([x, act], 1)
            critics = F.mse_loss(model["one"](pair), goal) + F.mse_loss(model["two"](pair), goal)
            of_critics.zero_grad()
            critics.backward()
            of_critics.step()
            actor = -model["one"](torch.cat([x, model["actor"](x).tanh()], 1)).mean()
            of_actor.zero_grad()
            actor.backward()
            of_actor.step()
            with torch.no_grad():
                for old, new in zip(lags.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.05)
            w.log(loss=critics, actor=actor)
    x = torch.randn(500, 3, generator=g)
    with torch.no_grad():
        return above(float(paid(x, model["actor"](x).tanh()).mean()), 0.85)


@healthy("two views of digits, a teacher that follows slowly", seeds=SEEDS)
def follows_slowly(watch: Watch, seed: int) -> Check:
    """There are no labels and no negatives: the teacher's answers are centred and sharp, the pupil's are not."""
    data, pupil = digits(images=True), Encoder(32)
    pupil.body.append(nn.Linear(32, 40))
    teacher, centre = copy.deepcopy(pupil).requires_grad_(False), torch.zeros(40)
    optimizer, g = AdamW(pupil.parameters(), lr=1e-3), generator(seed)

    def view(x: Tensor) -> Tensor:
        moved = x.roll(int(torch.randint(-1, 2, (1,), generator=g)), 3)
        return moved + 0.15 * torch.randn(x.shape, generator=g)

    with watch(pupil, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=250, size=64, seed=seed):
            a, b = view(x), view(x)
            with torch.no_grad():
                said = teacher.body(a)
                goal = ((said - centre) / 0.05).softmax(1)
                centre = 0.9 * centre + 0.1 * said.mean(0)
            loss = -(goal * (pupil.body(b) / 0.2).log_softmax(1)).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), pupil.parameters(), strict=True):
                    old.lerp_(new, 0.02)
            w.log(loss=loss)
    with torch.no_grad():
        return above(by_nearest(pupil(data[0]), data[1], pupil(data[2]), data[3]), 0.75)
