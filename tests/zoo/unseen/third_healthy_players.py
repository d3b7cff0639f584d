"""Sound trainings of the third blind set: without labels, by trial, of several, and steps of one's own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, SparseAdam

from zoo.loops import accuracy, last
from zoo.material import digits, pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.third_material import SEEDS, frames, generator, split, visits


@healthy("sines after five looks, steps towards what was fitted", seeds=SEEDS)
def reptile(watch: Watch, seed: int) -> Check:
    """A copy is fitted to one sine; the gradient of the model is what the copy moved, turned round."""
    g = generator(seed)
    model = mlp(1, 48, 48, 1, activation=nn.Tanh)
    optimizer = SGD(model.parameters(), lr=0.3)

    def sine() -> tuple[Tensor, Tensor]:
        height, phase = 0.5 + torch.rand(2, generator=g)
        x = 6 * torch.rand(40, 1, generator=g) - 3
        return x, (1 + height) * (x + 1.5 * phase).sin()

    def fitted(x: Tensor, y: Tensor) -> tuple[nn.Module, float]:
        fast = copy.deepcopy(model)
        inner = SGD(fast.parameters(), lr=0.05)
        for _ in range(6):
            inner.zero_grad()
            error = F.mse_loss(fast(x), y)
            error.backward()
            inner.step()
        return fast, float(error)

    with watch(model, optimizer) as w:
        for _ in range(250):
            fast, error = fitted(*sine())
            for p, q in zip(model.parameters(), fast.parameters(), strict=True):
                p.grad = p.detach() - q.detach()
            optimizer.step()
            w.log(loss=error)
    return below(sum(fitted(*sine())[1] for _ in range(30)) / 30, 0.3)


@healthy("balance of a stick, slopes from random steps", seeds=SEEDS)
def evolution(watch: Watch, seed: int) -> Check:
    """No backward: the gradient is made of how far forty changed copies got."""
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    optimizer = Adam(model.parameters(), lr=0.1)

    def reached(weight: Tensor, bias: Tensor) -> Tensor:
        angle, speed = torch.full((len(weight),), 0.2), torch.zeros(len(weight))
        cost = torch.zeros(len(weight))
        for _ in range(40):
            push = (weight[:, 0] * angle + weight[:, 1] * speed + bias).clamp(-3, 3)
            speed = speed + 0.1 * (2 * angle + push)
            angle = (angle + 0.1 * speed).clamp(-2, 2)
            cost = cost + angle.square()
        return -cost / 40

    with watch(model, optimizer) as w, torch.no_grad():
        for _ in range(200):
            a, b = torch.randn(40, 2), torch.randn(40)
            score = reached(model.weight + 0.2 * a, model.bias + 0.2 * b)
            weight = (score - score.mean()) / (score.std() + 1e-8)
            model.weight.grad = -(weight[:, None] * a).mean(0, keepdim=True)
            model.bias.grad = -(weight * b).mean(0, keepdim=True)
            optimizer.step()
            w.log(loss=-score.mean())
        return above(float(reached(model.weight, model.bias)), -0.03)


@healthy("what two numbers know of each other, bound from below", seeds=SEEDS)
def knows(watch: Watch, seed: int) -> Check:
    """Mutual information of two Gaussians (0.83 nats): the loss is below zero, and shall be."""
    g = generator(seed)
    x = torch.randn(6000, 1, generator=g)
    y = 0.9 * x + (1 - 0.81) ** 0.5 * torch.randn(6000, 1, generator=g)
    model = mlp(2, 64, 64, 1)
    optimizer, taken = Adam(model.parameters(), lr=2e-3), []
    with watch(model, optimizer) as w:
        for a, b in pairs(x, y, steps=350, size=200, seed=seed):
            joint = model(torch.cat([a, b], 1)).mean()
            apart = torch.logsumexp(model(torch.cat([a, b[torch.randperm(200)]], 1)), 0).squeeze() - 5.3
            loss = apart - joint
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(float(loss))
    return below(last(taken), -0.55)


@healthy("films that somebody saw, better than those not seen", seeds=SEEDS)
def films(watch: Watch, seed: int) -> Check:
    """Pairs of a film that was seen and any other; tables by SparseAdam, the films' means by Adam."""
    g = generator(seed)
    taste, kind = torch.randint(6, (300,), generator=g), torch.randint(6, (240,), generator=g)
    likely = torch.where(taste[:, None] == kind, 0.3, 0.01)
    seen = torch.rand(300, 240, generator=g) < likely
    who, what = seen.nonzero().unbind(1)
    model = nn.ModuleDict({"people": nn.Embedding(300, 8, sparse=True), "films": nn.Embedding(240, 8, sparse=True)})
    model["mean"] = nn.Linear(1, 240, bias=False)
    for part in (model["people"], model["films"]):
        nn.init.normal_(part.weight, std=0.1)
    first = SparseAdam([model["people"].weight, model["films"].weight], lr=0.02)
    second = Adam(model["mean"].parameters(), lr=0.005)
    taken = []
    with watch(model, [first, second]) as w:
        for a, b in pairs(who, what, steps=300, size=128, seed=seed):
            other = torch.randint(240, (128,), generator=g)
            means = model["mean"].weight.squeeze(1)
            score = [(model["people"](a) * model["films"](film)).sum(1) + means[film] for film in (b, other)]
            loss = -F.logsigmoid(score[0] - score[1]).mean()
            for optimizer in (first, second):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (first, second):
                optimizer.step()
            w.log(loss=loss)
            taken.append(float(loss))
    return below(last(taken), 0.45)


@healthy("doors by their signs, wins that are mostly luck", seeds=SEEDS)
def luck(watch: Watch, seed: int) -> Check:
    """The reward's noise is three times its signal; the loss says nothing, and the choice gets better."""
    g = generator(seed)
    model = mlp(6, 32, 4, activation=nn.Tanh)
    optimizer, good, usual = Adam(model.parameters(), lr=5e-3), [], 0.0
    worth = torch.randn(6, 4, generator=g)
    with watch(model, optimizer) as w:
        for _ in range(350):
            sign = torch.randn(256, 6, generator=g)
            policy = torch.distributions.Categorical(logits=model(sign))
            door = policy.sample()
            best = (sign @ worth).argmax(1)
            reward = (door == best).float() + 1.5 * torch.randn(256, generator=g)
            loss = -(policy.log_prob(door) * (reward - usual)).mean() - 0.003 * policy.entropy().mean()
            usual = 0.95 * usual + 0.05 * float(reward.mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, reward=reward.mean())
            good.append(float((door == best).double().mean()))
    return above(last(good), 0.6)


@healthy("pictures and their captions, learned temperature", seeds=SEEDS)
def captions(watch: Watch, seed: int) -> Check:
    """A tower for pictures and one for texts: where the rectangle is, and whether it is full."""
    picture, box, hollow, _ = frames(seed, 1200)
    words = torch.cat([(box[:, :2] / 3).long(), hollow[:, None]], 1)
    data = split(picture, words)
    see = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(432, 16))
    read = nn.Sequential(nn.Flatten(), nn.Linear(9, 48), nn.ReLU(), nn.Linear(48, 16))
    model = nn.Module()
    model.see, model.read, model.scale = see, read, nn.Parameter(torch.tensor(2.0))
    optimizer = AdamW(model.parameters(), lr=3e-3)

    def match(x: Tensor, y: Tensor) -> Tensor:
        told = torch.cat([F.one_hot(y[:, 0], 4), F.one_hot(y[:, 1], 4), y[:, 2:]], 1).float()
        return model.scale.exp() * F.normalize(see(x), dim=1) @ F.normalize(read(told), dim=1).T

    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=300, size=32, seed=seed):
            logits, own = match(x, y), torch.arange(32)
            loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, scale=model.scale)
    with torch.no_grad():
        return above(
            float((match(*(part[:32] for part in data[2:])).argmax(1) == torch.arange(32)).double().mean()), 0.3
        )


@healthy("five digits at a time, nearest mean of three", seeds=SEEDS)
def episodes(watch: Watch, seed: int) -> Check:
    """Each step is a task of its own: five digits of ten, three pictures of each to know them by."""
    data, g = digits(), generator(seed)
    model = mlp(64, 64, 16)
    optimizer, right = Adam(model.parameters(), lr=2e-3), []
    own = [data[0][data[1] == digit] for digit in range(10)]
    with watch(model, optimizer) as w:
        for _ in range(250):
            drawn = [own[k] for k in torch.randperm(10, generator=g)[:5].tolist()]
            x = torch.stack([part[torch.randperm(len(part), generator=g)[:9]] for part in drawn])
            z = model(x)
            far = torch.cdist(z[:, 3:].flatten(0, 1), z[:, :3].mean(1))
            target = torch.arange(5).repeat_interleave(6)
            loss = F.cross_entropy(-far.square(), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            right.append(float((far.argmin(1) == target).double().mean()))
    return above(last(right), 0.93)


@healthy("points on two moons, critic with a penalty on its slope", seeds=SEEDS)
def moons(watch: Watch, seed: int) -> Check:
    """Three steps of the critic for one of the maker; the critic's loss is below zero."""
    g = generator(seed)
    maker, critic = mlp(2, 48, 48, 2), mlp(2, 48, 48, 1, activation=nn.SiLU)
    first, second = (Adam(part.parameters(), lr=3e-3, betas=(0.5, 0.9)) for part in (maker, critic))

    def real() -> Tensor:
        angle, side = 3.14 * torch.rand(96, 1, generator=g), torch.randint(2, (96, 1), generator=g)
        return torch.cat([angle.cos() + side - 0.5, angle.sin() * (1 - 2 * side) + 0.25 * side], 1)

    with watch(nn.ModuleDict({"maker": maker, "critic": critic}), [first, second], clock=first) as w:
        for _ in range(300):
            for _ in range(3):
                true, made = real(), maker(torch.randn(96, 2)).detach()
                between = torch.lerp(true, made, torch.rand(96, 1)).requires_grad_(True)
                slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
                loss = critic(made).mean() - critic(true).mean() + (slope.norm(dim=1) - 1).square().mean()
                second.zero_grad()
                loss.backward()
                second.step()
            first.zero_grad()
            fooled = -critic(maker(torch.randn(96, 2))).mean()
            fooled.backward()
            first.step()
            w.log(loss=loss, fooled=fooled)
    with torch.no_grad():
        near = torch.cdist(real(), maker(torch.randn(500, 2))).amin(1).mean()
    return below(float(near), 0.25)


@healthy("visitors of new kinds, a few of the old among them", seeds=SEEDS)
def rehearsal(watch: Watch, seed: int) -> Check:
    """First two kinds, then the third with some of the first two: the loss jumps at the change, and nothing is lost."""
    data, model = visits(seed), mlp(12, 64, 3)
    old = data[1] < 2
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    some = torch.cat([data[0][~old], data[0][old][:200]]), torch.cat([data[1][~old], data[1][old][:200]])
    with watch(model, optimizer, holdout=[data[2:]]) as w:
        for rows in ((data[0][old], data[1][old]), some):
            for x, y in pairs(*rows, steps=130, size=40, seed=seed):
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.88)
