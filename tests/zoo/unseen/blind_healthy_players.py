"""Sound trainings of kinds that no other case has: several optimizers, learning by reward, without labels."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.swa_utils import AveragedModel

from zoo.loops import accuracy, classes, last
from zoo.material import digits, holdout, pairs
from zoo.models import cnn, mlp, parameters
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.blind_faults_steps import bandit, off, played, points
from zoo.unseen.blind_material import Waves, generator, waves

SEEDS = (0, 1)


@healthy("two players, ring of points", seeds=SEEDS)
def ring(watch: Watch, seed: int) -> Check:
    return below(off(played(watch, rates=(1e-3, 5e-3), steps=1500)), 0.3)


@healthy("clipped critic, Wasserstein players", seeds=SEEDS)
def wasserstein(watch: Watch, seed: int) -> Check:
    maker, critic = mlp(4, 32, 2), mlp(2, 32, 1)
    both = nn.ModuleDict({"maker": maker, "critic": critic})
    first, second = RMSprop(maker.parameters(), lr=1e-3), RMSprop(critic.parameters(), lr=2e-3)
    with watch(both, [first, second]) as w:
        for number in range(900):
            made = maker(torch.randn(64, 4))
            if number % 3 < 2:
                loss = critic(made.detach()).mean() - critic(points(64)).mean()
                second.zero_grad()
                loss.backward()
                second.step()
                with torch.no_grad():
                    for p in critic.parameters():
                        p.clamp_(-0.1, 0.1)
            else:
                worth = -critic(made).mean()
                first.zero_grad()
                worth.backward()
                first.step()
                w.log(loss=loss, maker=worth)
    with torch.no_grad():
        made = maker(torch.randn(500, 4))
    return below(off(made), 0.6)


@healthy("policy and critic, bandit of five arms", seeds=SEEDS)
def arms(watch: Watch, seed: int) -> Check:
    return above(bandit(watch, sign=1.0, rates=(1e-2, 0.02), seed=seed)[0], 1.0)


@healthy("values of four moves by hand, grid", seeds=SEEDS)
def grid(watch: Watch, seed: int) -> Check:
    """Q-learning on a grid of 4 × 4 with the goal in a corner."""
    g = generator(seed)
    place, move = torch.randint(15, (3000,), generator=g), torch.randint(4, (3000,), generator=g)
    row, column = (
        place // 4 + (move == 0).long() - (move == 1).long(),
        place % 4 + (move == 2).long() - (move == 3).long(),
    )
    after = row.clamp(0, 3) * 4 + column.clamp(0, 3)
    reward = (after == 15).float()
    model = mlp(16, 48, 4)
    slow, optimizer, eye = copy.deepcopy(model).requires_grad_(False), Adam(model.parameters(), lr=3e-3), torch.eye(16)
    with watch(model, optimizer) as w:
        for number in range(600):
            rows = torch.randint(3000, (64,), generator=g)
            value = model(eye[place[rows]]).gather(1, move[rows, None]).squeeze(1)
            aim = reward[rows] + 0.9 * slow(eye[after[rows]]).amax(1) * (1 - reward[rows])
            loss = ((value - aim) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 25 == 24:
                slow.load_state_dict(model.state_dict())
    chosen = model(eye[:15]).argmax(1)
    return above(float(((chosen == 0) | (chosen == 2)).float().mean()), 0.85)


@healthy("clipped policy steps, five arms", seeds=SEEDS)
def clipped_policy(watch: Watch, seed: int) -> Check:
    """PPO: several steps on each set of tries, with an entropy term."""
    g = generator(seed)
    worth, model = torch.randn(6, 5, generator=g), mlp(6, 32, 5)
    optimizer, rewards = Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for _ in range(80):
            seen = torch.randn(128, 6, generator=g)
            with torch.no_grad():
                before = model(seen).log_softmax(1)
            arm = torch.multinomial(before.exp(), 1, generator=g)
            reward = (seen @ worth).gather(1, arm)
            gain = (reward - reward.mean()) / reward.std()
            rewards.append(float(reward.mean()))
            for _ in range(4):
                now = model(seen).log_softmax(1)
                ratio = (now.gather(1, arm) - before.gather(1, arm)).exp()
                loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                loss = loss + 0.01 * (now.exp() * now).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                w.log(loss=loss)
    return above(last(rewards, 10), 1.0)


@healthy("noise taken off points, diffusion", seeds=SEEDS)
def diffusion(watch: Watch, seed: int) -> Check:
    g = generator(seed)
    model, losses = mlp(3, 64, 64, 2, activation=nn.SiLU), []
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for _ in range(500):
            x, t, noise = points(128), torch.rand(128, 1, generator=g), torch.randn(128, 2, generator=g)
            mixed = (1 - t).sqrt() * x + t.sqrt() * noise
            loss = F.mse_loss(model(torch.cat([mixed, t], 1)), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses, 50), 0.7)


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 0.15 * torch.randn_like(x), x + 0.15 * torch.randn_like(x)


def neighbours(code: Tensor, y: Tensor) -> float:
    """Share of examples whose nearest other one has the same label."""
    apart = torch.cdist(code, code).fill_diagonal_(9e9)
    return float((y[apart.argmin(1)] == y).float().mean())


@healthy("two views and a predictor, stopped gradient", seeds=SEEDS)
def simsiam(watch: Watch, seed: int) -> Check:
    data, encoder, predictor = digits(), mlp(64, 64, 32, norm=True), mlp(32, 16, 32, norm=True)
    both = nn.ModuleDict({"encoder": encoder, "predictor": predictor})
    optimizer = SGD(both.parameters(), lr=0.05, momentum=0.9)
    with watch(both, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=200, size=64, seed=seed):
            one, two = (encoder(view) for view in views(x))
            similar = [F.cosine_similarity(predictor(a), b.detach()).mean() for a, b in ((one, two), (two, one))]
            loss = -sum(similar) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        code = F.normalize(encoder.eval()(data[2]), dim=1)
    return above(neighbours(code, data[3]), 0.6)


@healthy("variance and covariance of two views, by hand", seeds=SEEDS)
def vicreg(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 16)
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=250, size=64, seed=seed):
            one, two = (model(view) for view in views(x))
            loss = 25 * ((one - two) ** 2).mean()
            for code in (one, two):
                spread = (code.var(0) + 1e-4).sqrt()
                centred = code - code.mean(0)
                covariance = centred.T @ centred / (len(x) - 1)
                rest = (
                    covariance.fill_diagonal_(0)
                    if not covariance.requires_grad
                    else covariance - covariance.diag().diag()
                )
                loss = loss + 25 * (1 - spread).relu().mean() + rest.square().sum() / 16
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        code = model(data[2])
    return above(neighbours(code, data[3]), 0.8)


@healthy("each view finds its other, InfoNCE by hand", seeds=SEEDS)
def info_nce(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn(classes=24)
    optimizer, losses = Adam(model.parameters(), lr=3e-3), []
    with watch(model, optimizer) as w:
        for x, _ in pairs(*data[:2], steps=200, size=48, seed=seed):
            one, two = (F.normalize(model(view), dim=1) for view in views(x))
            alike = one @ two.T / 0.2
            loss = (alike.logsumexp(1) - alike.diagonal()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            losses.append(loss.item())
    return below(last(losses), 0.7 * losses[0])


@healthy("near or far by a margin, siamese network", seeds=SEEDS)
def siamese(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 8)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=64, seed=seed):
            first, second = model(x[:32]), model(x[32:])
            same = (y[:32] == y[32:]).float()
            apart = (first - second).square().sum(1).add(1e-9).sqrt()
            loss = (same * apart**2 + (1 - same) * (1 - apart).relu() ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        code = model(data[2])
    return above(neighbours(code, data[3]), 0.8)


@healthy("average of the last weights, SWA", seeds=SEEDS)
def swa(watch: Watch, seed: int) -> Check:
    data, model = waves(seed=seed), Waves()
    average, optimizer = AveragedModel(model), SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer, holdout=[(data[2][:200], data[3][:200])]) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=300, size=32, seed=seed)):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number > 200 and number % 5 == 0:
                average.update_parameters(model)
    return above(accuracy(average, *data[2:]), 0.8)


@healthy("slow and fast weights, lookahead", seeds=SEEDS)
def lookahead(watch: Watch, seed: int) -> Check:
    """Every five steps the weights go back half of the way."""
    data, model = digits(), mlp(64, 48, 10)
    slow, optimizer = [p.detach().clone() for p in model.parameters()], Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer, holdout=holdout(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=250, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 5 == 0:
                with torch.no_grad():
                    for old, p in zip(slow, model.parameters(), strict=True):
                        old.lerp_(p, 0.5)
                        p.copy_(old)
    return above(accuracy(model, *data[2:]), 0.88)


@healthy("body and head with optimizers of their own, waves", seeds=SEEDS)
def two_parts(watch: Watch, seed: int) -> Check:
    data, model = waves(seed=seed), Waves(norm=True)
    first, second = SGD(parameters(model.body), lr=0.05, momentum=0.9), Adam(parameters(model.head), lr=5e-3)
    with watch(model, [first, second], holdout=[(data[2][:200], data[3][:200])]) as w:
        for x, y in pairs(*data[:2], steps=250, size=32, seed=seed):
            loss = classes(model(x), y)
            first.zero_grad()
            second.zero_grad()
            loss.backward()
            first.step()
            second.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.85)
