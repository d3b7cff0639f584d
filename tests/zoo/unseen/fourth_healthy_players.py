"""Sound trainings of the fourth blind set: choices, densities and pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from zoo.loops import accuracy, fit
from zoo.material import digits, pairs, rows_of
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.fourth_material import SEEDS, apart, crescents, generator, kept, offers


@healthy("offers from the log of another, weights by their odds", seeds=SEEDS)
def by_odds(watch: Watch, seed: int) -> Check:
    """A log of choices that were mostly by chance: each reward is divided by how likely its choice was."""
    x, best = offers(seed, 3000)
    odds = torch.rand(3000, 3, generator=generator(seed)) + 0.15
    odds = odds / odds.sum(1, keepdim=True)
    chosen = odds.multinomial(1, generator=generator(seed)).squeeze(1)
    reward = (chosen == best).float() - 0.33
    policy = mlp(6, 32, 3)
    optimizer = Adam(policy.parameters(), lr=3e-3)
    with watch(policy, optimizer) as w:
        for rows in rows_of(3000, steps=350, size=64, seed=seed):
            now = policy(x[rows]).softmax(1).gather(1, chosen[rows, None]).squeeze(1)
            then = odds[rows].gather(1, chosen[rows, None]).squeeze(1)
            loss = -(reward[rows] * (now / then).clamp(max=8)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(policy, *offers(99, 600)), 0.8)


class Density(nn.Module):
    """The logarithm of a density, up to a number that is learned too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.constant = mlp(2, 64, 64, 1, activation=nn.SiLU), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze(1) + self.constant


@healthy("density of crescents, points told from noise", seeds=SEEDS)
def from_noise(watch: Watch, seed: int) -> Check:
    """Each batch has new noise; the loss ends where both can no longer be told apart better."""
    data, model = crescents(seed), Density()
    noise = torch.distributions.Normal(0.0, 1.5)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for rows in rows_of(len(data), steps=300, size=100, seed=seed):
            false = noise.sample((100, 2))
            real, made = (model(x) - noise.log_prob(x).sum(1) for x in (data[rows], false))
            loss = F.softplus(-real).mean() + F.softplus(made).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        inside, outside = model(crescents(seed + 50)).mean(), model(noise.sample((1500, 2))).mean()
    return above(float(inside - outside), 2.0)


@healthy("from noise to crescents on straight lines, flow matching", seeds=SEEDS)
def straight(watch: Watch, seed: int) -> Check:
    """What is to be forecast is mostly chance: the loss falls a little and stays high."""
    data, model = crescents(seed), mlp(3, 96, 96, 96, 2, activation=nn.SiLU)
    optimizer = AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    with watch(model, optimizer) as w:
        for rows in rows_of(len(data), steps=400, size=256, seed=seed):
            start, time = torch.randn(256, 2), torch.rand(256, 1)
            between = (1 - time) * start + time * data[rows]
            loss = F.mse_loss(model(torch.cat([between, time], 1)), data[rows] - start)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            w.log(loss=loss)
    points = torch.randn(500, 2)
    with torch.no_grad():
        for step in range(40):
            points = points + model(torch.cat([points, torch.full((500, 1), step / 40)], 1)) / 40
    return below(apart(points, data), 0.12)


class Choices(nn.Module):
    """A code of eight letters of four kinds, soft while it trains and hard where it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.warmth = mlp(64, 64, 32), mlp(32, 64, 64), 1.0

    def forward(self, x: Tensor) -> Tensor:
        letters = self.encoder(x).view(len(x), 8, 4)
        if self.training:
            return self.decoder(F.gumbel_softmax(letters, self.warmth).flatten(1))
        return self.decoder(F.one_hot(letters.argmax(2), 4).float().flatten(1))


@healthy("digits as eight letters, choices that grow hard", seeds=SEEDS)
def letters(watch: Watch, seed: int) -> Check:
    data, model = digits(), Choices()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=[(data[2], data[2])], loss=F.mse_loss) as w:
        for step, (x, _) in enumerate(pairs(*data[:2], steps=350, size=64, seed=seed)):
            model.warmth = max(0.4, 0.99**step)
            loss = F.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    model.eval()
    with torch.no_grad():
        left = F.mse_loss(model(data[2]), data[2]) / data[2].var(0, correction=0).mean()
    return below(float(left), 0.75)


class Made(nn.Module):
    """Reads one of ten curves from its name: a network makes the weights of the one that answers."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.maker = nn.Embedding(10, 8), mlp(8, 48, 16 + 16 + 16 + 1)

    def forward(self, name: Tensor, x: Tensor) -> Tensor:
        a, b, c, d = self.maker(self.names(name)).split([16, 16, 16, 1], 1)
        return ((3 * x * a + b).tanh() * c).sum(1, keepdim=True) + d


@healthy("ten curves, weights that a network makes", seeds=SEEDS)
def made(watch: Watch, seed: int) -> Check:
    g, model = generator(seed), Made()
    pace, phase = 1 + 2 * torch.rand(10, 1, generator=g), 3 * torch.rand(10, 1, generator=g)
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for _ in range(400):
            name, x = torch.randint(10, (100,), generator=g), 2 * torch.rand(100, 1, generator=g) - 1
            loss = F.huber_loss(model(name, x), (pace[name] * x + phase[name]).sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    name, x = torch.arange(10).repeat(50), torch.linspace(-1, 1, 500)[:, None]
    with torch.no_grad():
        return below(float(F.mse_loss(model(name, x), (pace[name] * x + phase[name]).sin())), 0.06)


class Latents(nn.Module):
    """Four vectors ask the pixels, each of which comes with its place."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.pixel, self.places = nn.Linear(1, width), nn.Parameter(0.5 * torch.randn(64, width))
        self.latents, self.ask = nn.Parameter(torch.randn(4, width)), nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), mlp(4 * width, 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        seen = F.gelu(self.pixel(x[:, :, None]) + self.places)
        asked = self.ask(self.latents.expand(len(x), -1, -1), seen, seen, need_weights=False)[0]
        return self.head(self.norm(asked).flatten(1))


@healthy("digits asked by four vectors, warm-up and smoothed labels", seeds=SEEDS)
def asked(watch: Watch, seed: int) -> Check:
    data, model = digits(), Latents()
    optimizer = AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 40)
    fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=50, seed=seed),
        lambda outputs, y: F.cross_entropy(outputs, y, label_smoothing=0.1), schedule=schedule, clip=1.0,
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("body and head of digits, twenty steps each in turn", seeds=SEEDS)
def in_turn(watch: Watch, seed: int) -> Check:
    """While the one learns the other is frozen."""
    data, model = digits(), nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.8)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for step, (x, y) in enumerate(pairs(*data[:2], steps=320, size=50, seed=seed)):
            if step % 20 == 0:
                model[0].requires_grad_(step // 20 % 2 == 0)
                model[1].requires_grad_(step // 20 % 2 == 1)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.88)


class Patches(nn.Module):
    """Sixteen patches of a digit, of which eight are given: the others are to be made up."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, width), nn.Linear(width, 4)
        self.places, self.empty = nn.Parameter(0.3 * torch.randn(16, width)), nn.Parameter(torch.zeros(width))
        layer = nn.TransformerEncoderLayer(width, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, patches: Tensor, hidden: Tensor) -> Tensor:
        seen = torch.where(hidden[:, :, None], self.empty, self.into(patches))
        return self.out(self.body(seen + self.places))


@healthy("digits of which half is hidden, masked patches", seeds=SEEDS)
def hidden(watch: Watch, seed: int) -> Check:
    """Much cannot be known: the loss has a high floor."""
    data, model = digits(images=True), Patches()
    train, held = (F.unfold(x, 2, stride=2).transpose(1, 2) for x in (data[0], data[2]))
    optimizer = AdamW(model.parameters(), lr=4e-3)
    with watch(model, optimizer) as w:
        for rows in rows_of(len(train), steps=350, size=48, seed=seed):
            away = torch.rand(48, 16).argsort(1) >= 8
            loss = (model(train[rows], away) - train[rows])[away].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    away = torch.rand(len(held), 16).argsort(1) >= 8
    with torch.no_grad():
        left = (model(held, away) - held)[away].square().mean() / (held - train.mean(0))[away].square().mean()
    return below(float(left), 0.85)


@healthy("steering by example, data that grows with what was met", seeds=SEEDS)
def steering(watch: Watch, seed: int) -> Check:
    """After every round the places where the learner went are given the teacher's answer and join the data."""
    g, model = generator(seed), mlp(3, 48, 1, activation=nn.Tanh)
    optimizer = RMSprop(model.parameters(), lr=2e-3)

    def teacher(state: Tensor) -> Tensor:
        return (-1.5 * state[:, :1] - state[:, 1:2] - 0.5 * state[:, 2:]).clamp(-1, 1)

    def drive(steer: nn.Module | None) -> tuple[Tensor, float]:
        state, met = torch.randn(20, 3, generator=g), []
        with torch.no_grad():
            for _ in range(20):
                turn = teacher(state) if steer is None else steer(state)
                met.append(state)
                state = torch.cat([state[:, :1] + 0.2 * state[:, 1:2], state[:, 1:2] + 0.4 * turn, state[:, 2:]], 1)
        return torch.cat(met), float((state[:, 0] + state[:, 2] / 3).abs().mean())

    states = drive(None)[0]
    with watch(model, optimizer) as w:
        for turn in range(5):
            for x, y in pairs(states, teacher(states), steps=60, size=50, seed=10 * seed + turn):
                loss = F.l1_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss, states=len(states))
            states = torch.cat([states, drive(model)[0]])
    fresh = drive(model)[0]
    return below(float(F.l1_loss(model(fresh), teacher(fresh)).detach()), 0.15)
