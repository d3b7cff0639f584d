"""Sound trainings of the fifth blind set: pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CyclicLR, LambdaLR

from zoo.loops import accuracy, fit
from zoo.material import digits, pairs
from zoo.models import cnn, hf_vit, mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.fifth_material import SEEDS, generator, kept, stains
from zoo.unseen.fifth_models import ConvVAE, Residual, UNet, covered


@healthy("digits, a rate that goes up and down five times", seeds=SEEDS)
def cyclic(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), Residual()
    optimizer = SGD(model.parameters(), lr=1e-3, momentum=0.9)
    fit(watch, model, optimizer, pairs(*data[:2], steps=300, size=32, seed=seed),
        schedule=CyclicLR(optimizer, 1e-3, 0.1, step_size_up=30), holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.93)


@healthy("digits, warm-up from nothing and back to nothing, ViT", seeds=SEEDS)
def to_nothing(watch: Watch, seed: int) -> Check:
    """The rate of the first step and of the last is zero."""
    data, model = digits(images=True), hf_vit()
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = LambdaLR(optimizer, lambda s: min(s / 80, max(0.0, (399 - s) / 319)))
    fit(watch, model, optimizer, pairs(*data[:2], steps=400, size=40, seed=seed),
        lambda outputs, y: F.cross_entropy(outputs.logits, y), schedule=schedule, clip=1.0,
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("high digits by what low ones taught, a frozen body in eval mode", seeds=SEEDS)
def frozen_body(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), Residual(5)
    low, held = data[1] < 5, data[3] >= 5
    first = Adam(model.parameters(), lr=3e-3)
    for x, y in pairs(data[0][low], data[1][low], steps=120, size=32, seed=seed):
        first.zero_grad()
        F.cross_entropy(model(x), y).backward()
        first.step()
    model.head = nn.Linear(48, 5)
    for name, tensor in model.named_parameters():
        tensor.requires_grad = name.startswith("head")
    model.eval()
    fit(watch, model, Adam(model.head.parameters(), lr=1e-2),
        pairs(data[0][~low], data[1][~low] - 5, steps=200, size=32, seed=seed),
        holdout=[(data[2][held], data[3][held] - 5)])  # fmt: skip
    return above(accuracy(model, data[2][held], data[3][held] - 5), 0.85)


@healthy("digits two at a time, group norm", seeds=SEEDS)
def two_at_a_time(watch: Watch, seed: int) -> Check:
    """Each loss is that of two pictures, and jumps."""
    data, model = digits(images=True), Residual(groups=3)
    fit(watch, model, Adam(model.parameters(), lr=1e-3), pairs(*data[:2], steps=400, size=2, seed=seed),
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.7)


@healthy("small stains, rare pixels weigh twenty times", seeds=SEEDS)
def weighed(watch: Watch, seed: int) -> Check:
    data, model = stains(seed, radius=(0.8, 1.4)), UNet()
    weight = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(20.0))
    fit(watch, model, Adam(model.parameters(), lr=3e-3), pairs(*data[:2], steps=250, size=25, seed=seed), weight,
        holdout=kept(data, 100), loss=weight)  # fmt: skip
    return above(covered(model, *data[2:]), 0.5)


class Denoiser(nn.Module):
    """The noise of a digit, told how much there is and, most of the time, which digit it is."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.told = nn.Conv2d(2, 24, 3, padding=1), nn.Embedding(11, 24)
        self.middle = nn.Sequential(nn.SiLU(), nn.Conv2d(24, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.SiLU(),
                                    nn.Conv2d(24, 24, 3, padding=1), nn.SiLU())  # fmt: skip
        self.out = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, digit: Tensor) -> Tensor:
        h = self.into(torch.cat([x, time[:, None, None, None].expand_as(x)], 1)) + self.told(digit)[:, :, None, None]
        return self.out(h + self.middle(h))


@healthy("noise of digits, now and then without being told which", seeds=SEEDS)
def guided(watch: Watch, seed: int) -> Check:
    """A loss that depends on how much noise was drawn, and never comes near nothing."""
    data, model = digits(images=True), Denoiser()
    optimizer = AdamW(model.parameters(), lr=3e-3)

    def error(x: Tensor, y: Tensor) -> Tensor:
        time, noise = torch.rand(len(x)), torch.randn_like(x)
        share = (1.5 * time).cos().square()[:, None, None, None]
        digit = torch.where(torch.rand(len(y)) < 0.1, 10, y)
        return F.mse_loss(model(share.sqrt() * (2 * x - 1) + (1 - share).sqrt() * noise, time, digit), noise)

    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=40, seed=seed):
            loss = error(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float(error(*data[2:])), 0.35)


@healthy("digits by their codes, a divergence that comes and goes", seeds=SEEDS)
def comes_and_goes(watch: Watch, seed: int) -> Check:
    """The divergence's weight rises from nothing in each of three rounds: the loss is a saw."""
    data, model = digits(images=True), ConvVAE()
    optimizer = Adam(model.parameters(), lr=4e-3)
    with watch(model, optimizer) as w:
        for step, (x, _) in enumerate(pairs(*data[:2], steps=390, size=48, seed=seed)):
            made, mean, spread = model(x)
            divergence = 0.5 * (mean**2 + spread.exp() - spread - 1).sum(1).mean()
            loss = F.mse_loss(made, x, reduction="sum") / len(x) + min(1.0, step % 130 / 65) * 0.4 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return below(float(F.mse_loss(model.eval()(data[2])[0], data[2]) / data[2].var(0).mean()), 0.75)


@healthy("digits from three teachers at a temperature of four", seeds=SEEDS)
def three_teachers(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), nn.Sequential(nn.Flatten(), mlp(64, 32, 10))
    teachers = nn.ModuleList(cnn() for _ in range(3))
    first = Adam(teachers.parameters(), lr=3e-3)
    for x, y in pairs(*data[:2], steps=100, size=50, seed=seed):
        first.zero_grad()
        torch.stack([F.cross_entropy(teacher(x), y) for teacher in teachers]).sum().backward()
        first.step()
    optimizer = RMSprop(model.parameters(), lr=2e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=250, size=50, seed=seed):
            with torch.no_grad():
                soft = torch.stack([(teacher(x) / 4).softmax(1) for teacher in teachers]).mean(0)
            said = model(x)
            loss = 16 * F.kl_div((said / 4).log_softmax(1), soft, reduction="batchmean") + F.cross_entropy(said, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.88)


@healthy("digits mixed in pairs, a loss that stays high", seeds=SEEDS)
def mixed(watch: Watch, seed: int) -> Check:
    data, model, g = digits(images=True), Residual(), generator(seed)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=250, size=40, seed=seed):
            share, other = float(torch.rand((), generator=g)), torch.randperm(40, generator=g)
            said = model(share * x + (1 - share) * x[other])
            loss = share * F.cross_entropy(said, y) + (1 - share) * F.cross_entropy(said, y[other])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)
