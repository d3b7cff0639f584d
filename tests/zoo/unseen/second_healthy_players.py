"""Sound trainings of the second blind set: codes and densities, graphs, players and other losses."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop

from zoo.loops import accuracy, classes, explained, fit, last
from zoo.material import digits, pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.second_faults_losses import PictureVAE
from zoo.unseen.second_material import SEEDS, generator, glyphs, graphs, kept, moons, series, split
from zoo.unseen.second_models import GIN, TCN


@healthy("cliques, sums over neighbours", seeds=SEEDS)
def cliques(watch: Watch, seed: int) -> Check:
    data, model = split(*graphs(seed, 1200)), GIN()
    fit(watch, model, AdamW(model.parameters(), lr=4e-3), pairs(*data[:2], steps=250, size=40, seed=seed),
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("cliques among few, graphs weighed by rarity", seeds=SEEDS)
def rare(watch: Watch, seed: int) -> Check:
    data, model = split(*graphs(seed, 1600, share=0.12)), GIN()
    count = torch.bincount(data[1], minlength=2)
    weighed = nn.CrossEntropyLoss(weight=len(data[1]) / (2 * count))
    fit(watch, model, AdamW(model.parameters(), lr=4e-3), pairs(*data[:2], steps=250, size=64, seed=seed), weighed,
        holdout=kept(data, 400), loss=weighed)  # fmt: skip
    with torch.no_grad():
        right = model(data[2]).argmax(1) == data[3]
    return above(float(min(right[data[3] == one].double().mean() for one in (0, 1))), 0.75)


class Rounded(nn.Module):
    """The nearest of 32 vectors for each of four parts; the gradient goes past the choice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 32), mlp(32, 64, 64)
        self.book = nn.Embedding(32, 8)
        nn.init.normal_(self.book.weight, std=0.3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).view(-1, 4, 8)
        near = self.book(torch.cdist(z.flatten(0, 1), self.book.weight).argmin(1)).view_as(z)
        apart = F.mse_loss(near, z.detach()) + 0.25 * F.mse_loss(z, near.detach())
        return self.decoder((z + (near - z).detach()).flatten(1)), apart


@healthy("a book of codes, autoencoder", seeds=SEEDS)
def book(watch: Watch, seed: int) -> Check:
    data, model = digits(), Rounded()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=350, size=64, seed=seed):
            out, apart = model(x)
            loss = F.mse_loss(out, x) + 0.3 * apart
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        error = (model(data[2])[0] - data[2]).square().mean() / data[2].var(0).mean()
    return below(float(error), 0.65)


@healthy("shapes from codes, divergence that comes in slowly", seeds=SEEDS)
def slowly(watch: Watch, seed: int) -> Check:
    x, _, mask = glyphs(1600, seed=seed)
    data, model = split(x, mask), PictureVAE(10)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for step, (a, b) in enumerate(pairs(*data[:2], steps=350, size=50, seed=seed)):
            out, mean, log_variance = model(a)
            divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
            error = F.mse_loss(out, b, reduction="sum") / len(a)
            loss = error + 0.2 * min(1.0, step / 150) * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, error=error, divergence=divergence)
    return above(float(divergence), 3.0)


class Masked(nn.Module):
    """Each pixel from those before it: weights that would see later ones are held at zero."""

    def __init__(self, inputs: int = 64, width: int = 160) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, inputs)
        degree, place = torch.arange(width) % (inputs - 1), torch.arange(inputs)
        self.register_buffer("mask1", (degree[:, None] >= place).float())
        self.register_buffer("mask2", (place[:, None] > degree).float())

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(F.linear(x, self.first.weight * self.get_buffer("mask1"), self.first.bias))
        return F.linear(h, self.second.weight * self.get_buffer("mask2"), self.second.bias)


@healthy("pixel after pixel, masked autoencoder of densities", seeds=SEEDS)
def pixels(watch: Watch, seed: int) -> Check:
    """Black or white pixels of digits: what one costs, in nats; frequencies alone give 0.4."""
    x = (digits()[0] > 0.5).float()
    model = Masked()
    taken = fit(watch, model, AdamW(model.parameters(), lr=3e-3), pairs(x, x, steps=350, size=64, seed=seed),
                F.binary_cross_entropy_with_logits)  # fmt: skip
    return below(last(taken), 0.33)


@healthy("catching what falls, values with a copy that lags", seeds=SEEDS)
def catching(watch: Watch, seed: int) -> Check:
    """A bowl of 5 places under something that falls for 4 steps; the moves come from a store."""
    g = generator(seed)
    model = mlp(11, 48, 3)
    lagging = copy.deepcopy(model).requires_grad_(False)

    def seen(ball: Tensor, bowl: Tensor, height: Tensor) -> Tensor:
        return torch.cat([F.one_hot(ball, 5), F.one_hot(bowl, 5), height[:, None] / 4], 1).float()

    count = 6000
    ball, bowl, move = (torch.randint(n, (count,), generator=g) for n in (5, 5, 3))
    height = torch.randint(1, 5, (count,), generator=g)
    after = (bowl + move - 1).clamp(0, 4)
    ended = height == 1
    reward = torch.where(ended, torch.where(after == ball, 1.0, -1.0), torch.tensor(0.0))
    now, then = seen(ball, bowl, height), seen(ball, after, height - 1)
    optimizer = RMSprop(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as w:
        for rows, _ in pairs(torch.arange(count), torch.arange(count), steps=400, size=200, seed=seed):
            best = lagging(then[rows]).amax(1)
            target = reward[rows] + 0.95 * best * ~ended[rows]
            loss = F.smooth_l1_loss(model(now[rows]).gather(1, move[rows, None]).squeeze(1), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for a, b in zip(lagging.parameters(), model.parameters(), strict=True):
                    a.lerp_(b, 0.05)
            w.log(loss=loss)
    place, aim = torch.randint(5, (300,), generator=g), torch.randint(5, (300,), generator=g)
    with torch.no_grad():
        for left in (4, 3, 2, 1):
            said = model(seen(aim, place, torch.full((300,), left)))
            place = (place + said.argmax(1) - 1).clamp(0, 4)
    return above(float((place == aim).double().mean()), 0.9)


@healthy("throws at a mark, policy of a mean and a spread", seeds=SEEDS)
def throws(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    body, spread = mlp(3, 32, 1, activation=nn.Tanh), nn.Parameter(torch.zeros(1))
    model = nn.Module()
    model.body, model.spread = body, spread
    optimizer, won = Adam(model.parameters(), lr=5e-3), []
    with watch(model, optimizer) as w:
        for _ in range(350):
            wind = torch.randn(128, 3, generator=g)
            mark = wind[:, :1] - 0.5 * wind[:, 1:2]
            policy = torch.distributions.Normal(body(wind), spread.clamp(-3, 1).exp())
            throw = policy.sample()
            reward = -(throw - mark).abs()
            gain = (reward - reward.mean()) / (reward.std() + 1e-6)
            loss = -(policy.log_prob(throw) * gain).mean() - 0.001 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, reward=reward.mean())
            won.append(float(reward.mean()))
    return above(last(won), -0.55)


@healthy("points of three kinds on demand, hinge players", seeds=SEEDS)
def on_demand(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    maker, judge = mlp(5, 48, 48, 2), nn.utils.parametrizations.spectral_norm(nn.Linear(5, 48))
    critic = nn.Sequential(judge, nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    first, second = (Adam(part.parameters(), lr=1e-3, betas=(0.0, 0.9)) for part in (maker, critic))
    centres = torch.tensor([[1.5, 0.0], [-1.0, 1.0], [-0.5, -1.5]])
    with watch(nn.ModuleDict({"maker": maker, "critic": critic}), [first, second]) as w:
        for _ in range(400):
            kind = torch.randint(3, (96,), generator=g)
            told = F.one_hot(kind, 3).float()
            real = centres[kind] + 0.2 * torch.randn(96, 2, generator=g)
            fake = maker(torch.cat([torch.randn(96, 2), told], 1))
            loss = (F.relu(1 - critic(torch.cat([real, told], 1))).mean()
                    + F.relu(1 + critic(torch.cat([fake.detach(), told], 1))).mean())  # fmt: skip
            second.zero_grad()
            loss.backward()
            second.step()
            made = -critic(torch.cat([fake, told], 1)).mean()
            first.zero_grad()
            made.backward()
            first.step()
            w.log(loss=loss, made=made)
    with torch.no_grad():
        means = torch.stack([maker(torch.cat([torch.randn(300, 2), told.expand(300, 3)], 1)).mean(0)
                             for told in torch.eye(3)])  # fmt: skip
    return below(float((means - centres).norm(dim=1).mean()), 0.8)


@healthy("noise taken off waves, convolutions told the time", seeds=SEEDS)
def noisy_waves(watch: Watch, seed: int) -> Check:
    x = series(seed)[0]
    model = nn.Module()
    model.body, model.time = TCN(24), mlp(1, 16, 1)
    optimizer, taken = AdamW(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for wave, _ in pairs(x, x, steps=300, size=32, seed=seed):
            time, noise = torch.rand(len(wave), 1, 1), torch.randn_like(wave)
            given = (math.pi / 2 * time).cos() * wave + (math.pi / 2 * time).sin() * noise
            loss = F.mse_loss(model.body(given + model.time(time)), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    return below(last(taken), 0.6)


@healthy("digits by a vector a class, margin between angles", seeds=SEEDS)
def angles(watch: Watch, seed: int) -> Check:
    """The cosine of the right class is held down by 0.2, and all are times 16."""
    data = digits()

    class Angles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.classes = mlp(64, 64, 24), nn.Parameter(torch.randn(10, 24))

        def forward(self, x: Tensor) -> Tensor:
            return F.normalize(self.body(x), dim=1) @ F.normalize(self.classes, dim=1).T

    model = Angles()

    def margin(cosine: Tensor, y: Tensor) -> Tensor:
        return classes(16 * (cosine - 0.2 * F.one_hot(y, 10)), y)

    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), pairs(*data[:2], steps=300, seed=seed), margin,
        holdout=kept(data), loss=margin)  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.92)


@healthy("path of a spiral, steps of a learned slope", seeds=SEEDS)
def slope(watch: Watch, seed: int) -> Check:
    """Twenty small steps along what the network says; the whole path is compared."""
    g = generator(seed)
    turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    start = torch.randn(400, 2, generator=g)
    path = torch.stack([start @ torch.linalg.matrix_exp(turn * 0.1 * n) for n in range(1, 21)], 1)
    data = split(start, path)

    class Path(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = mlp(2, 32, 2, activation=nn.Tanh)

        def forward(self, at: Tensor) -> Tensor:
            passed = []
            for _ in range(20):
                half = at + 0.05 * self.slope(at)
                at = at + 0.1 * self.slope(half)
                passed.append(at)
            return torch.stack(passed, 1)

    model = Path()
    fit(watch, model, Adam(model.parameters(), lr=1e-2), pairs(*data[:2], steps=200, size=50, seed=seed), F.mse_loss,
        clip=1.0, holdout=kept(data), loss=F.mse_loss)  # fmt: skip
    return above(explained(model, *data[2:]), 0.85)


@healthy("few labels and many points, agreement with an average", seeds=SEEDS)
def few_labels(watch: Watch, seed: int) -> Check:
    """Ten points of each moon have labels; on the others the model shall agree with its own average."""
    data = moons(seed, noise=0.1)
    model = mlp(2, 48, 48, 2)
    slow = copy.deepcopy(model).requires_grad_(False)
    labelled = torch.cat([(data[1] == one).nonzero().squeeze(1)[:10] for one in (0, 1)])
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, _ in pairs(*data[:2], steps=300, size=100, seed=seed):
            agreed = F.mse_loss(model(x + 0.1 * torch.randn_like(x)).softmax(1), slow(x).softmax(1))
            loss = classes(model(data[0][labelled]), data[1][labelled]) + agreed
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for a, b in zip(slow.parameters(), model.parameters(), strict=True):
                    a.lerp_(b, 0.03)
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.85)
