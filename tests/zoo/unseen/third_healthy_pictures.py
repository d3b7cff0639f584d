"""Sound trainings of the third blind set: pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from zoo.loops import accuracy, classes, fit
from zoo.material import digits, pairs
from zoo.models import cnn, mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.third_faults_losses import ANCHORS, Detector, overlap
from zoo.unseen.third_material import SEEDS, frames, kept, split
from zoo.unseen.third_models import Segmenter


@healthy("digits, layers thawed one after the other", seeds=SEEDS)
def thawed(watch: Watch, seed: int) -> Check:
    """Trained on the first five digits; for the others the head is new and the rest is thawed from its end."""
    data, model = digits(images=True), cnn()
    low, held = data[1] < 5, data[3] >= 5
    first = Adam(model.parameters(), lr=3e-3)
    for x, y in pairs(data[0][low], data[1][low], steps=100, size=50, seed=seed):
        first.zero_grad()
        classes(model(x), y).backward()
        first.step()
    model[-1] = nn.Linear(256, 10)
    model.requires_grad_(False)
    parts = [model[-1], model[3], model[0]]
    optimizer = Adam([{"params": part.parameters(), "lr": rate} for part, rate in zip(parts, (3e-3, 1e-3, 3e-4),
                      strict=True)])  # fmt: skip
    with watch(model, optimizer, holdout=[(data[2][held], data[3][held])]) as w:
        for step, (x, y) in enumerate(pairs(data[0][~low], data[1][~low], steps=240, size=40, seed=seed)):
            if step % 80 == 0:
                parts[step // 80].requires_grad_(True)
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, data[2][held], data[3][held]), 0.93)


@healthy("one digit among many, rare ones drawn more often", seeds=SEEDS)
def drawn_more(watch: Watch, seed: int) -> Check:
    """Is it a nine? A sampler gives each of both as often as the other; the holdout is as it comes."""
    data, model = digits(images=True), cnn(classes=2)
    y, held = (data[1] == 9).long(), (data[3] == 9).long()
    weight = 1 / torch.bincount(y)[y]
    sampler = WeightedRandomSampler(weight.tolist(), 1400, generator=torch.Generator().manual_seed(seed))
    loader = DataLoader(TensorDataset(data[0], y), 50, sampler=sampler)
    optimizer = AdamW(model.parameters(), lr=2e-3)
    with watch(model, optimizer, holdout=TensorDataset(data[2], held)) as w:
        for _ in range(8):
            for a, b in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(a), b)
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
    return above(accuracy(model, data[2][held == 1], held[held == 1]), 0.9)


class Skipped(nn.Module):
    """Eight residual blocks, each left out for the whole batch now and then, the later the more often."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(64, 48), nn.Linear(48, 10)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
                                    for _ in range(8))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for number, block in enumerate(self.blocks, 1):
            left = 1 - 0.5 * number / 8
            if not self.training:
                h = h + left * block(h)
            elif torch.rand(()) < left:
                h = h + block(h)
        return self.head(h)


@healthy("digits, blocks left out by chance", seeds=SEEDS)
def left_out(watch: Watch, seed: int) -> Check:
    data, model = digits(), Skipped()
    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    fit(watch, model, optimizer, pairs(*data[:2], steps=250, size=50, seed=seed), holdout=kept(data))
    return above(accuracy(model, *data[2:]), 0.93)


@healthy("digits, a piece of another picture pasted in", seeds=SEEDS)
def pasted(watch: Watch, seed: int) -> Check:
    """The loss is shared as the area is: it stays high."""
    data, model = digits(images=True), cnn(norm=True)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    schedule = CosineAnnealingLR(optimizer, 280)
    with watch(model, optimizer, holdout=kept(data, 400), loss=F.cross_entropy) as w:
        for x, y in pairs(*data[:2], steps=280, size=50, seed=seed):
            other = torch.randperm(50)
            top, left, side = (int(torch.randint(a, b, ())) for a, b in ((0, 5), (0, 5), (2, 5)))
            mixed = x.clone()
            mixed[..., top : top + side, left : left + side] = x[other][..., top : top + side, left : left + side]
            share = mixed[0, 0, top : top + side, left : left + side].numel() / 64
            out = model(mixed)
            loss = (1 - share) * F.cross_entropy(out, y) + share * F.cross_entropy(out, y[other])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.93)


class Coarse(nn.Module):
    """Weights and what goes through rounded to four bits, whose slope is taken for one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((64, 64), (64, 64), (64, 10)))

    @staticmethod
    def rounded(x: Tensor) -> Tensor:
        scale = x.detach().abs().max() / 7 + 1e-9
        return x + ((x / scale).round() * scale - x).detach()

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = F.linear(self.rounded(x), self.rounded(layer.weight), layer.bias)
            x = F.relu(x) if number < 2 else x
        return x


@healthy("digits, four bits while training", seeds=SEEDS)
def four_bits(watch: Watch, seed: int) -> Check:
    data, model = digits(), Coarse()
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=250, size=50, seed=seed),
        nn.CrossEntropyLoss(), holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("digits, nine weights of ten held at zero", seeds=SEEDS)
def held_at_zero(watch: Watch, seed: int) -> Check:
    """Pruned before training; the gradient of what was cut is cleared, so it stays zero."""
    data, model = digits(), mlp(64, 128, 128, 10)
    left = {name: torch.rand_like(p) < (0.1 if p.ndim == 2 else 2.0) for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(3.0 * left[name] if p.ndim == 2 else left[name])
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=250, size=50, seed=seed):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            for name, p in model.named_parameters():
                if p.grad is not None:
                    p.grad *= left[name]
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.88)


@healthy("digits, trained against small attacks", seeds=SEEDS)
def attacked(watch: Watch, seed: int) -> Check:
    data, model = digits(images=True), cnn()
    optimizer = RMSprop(model.parameters(), lr=1e-3)

    def attack(x: Tensor, y: Tensor) -> Tensor:
        given = x.clone().requires_grad_(True)
        slope = torch.autograd.grad(F.cross_entropy(model(given), y), given)[0]
        return (x + 0.07 * slope.sign()).clamp(0, 1).detach()

    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=250, size=40, seed=seed):
            worst = attack(x, y)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(worst), y)
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, attack(*data[2:]), data[3]), 0.7)


@healthy("rectangles, cells that see something and its box", seeds=SEEDS)
def boxes(watch: Watch, seed: int) -> Check:
    """Few cells of many are near: a focal loss for those, and the distance of the box where there is one."""
    picture, box, _, _ = frames(seed)
    data, model = split(picture, box), Detector()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=280, size=24, seed=seed):
            seen, said = model(x)
            hit = (overlap(y) > 0.25).float()
            p = torch.where(hit > 0, seen.sigmoid(), 1 - seen.sigmoid())
            there = -((1 - p) ** 2 * p.clamp(min=1e-6).log()).sum() / hit.sum()
            apart = F.smooth_l1_loss(said, (y[:, None] - ANCHORS) / 4, reduction="none").sum(2)
            loss = there + (hit * apart).sum() / hit.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss, there=there)
    with torch.no_grad():
        seen, said = model(data[2])
    best = seen.argmax(1)
    found = ANCHORS[best] + 4 * said[torch.arange(len(best)), best]
    return below(float((found[:, :2] - data[3][:, :2]).norm(dim=1).mean()), 1.2)


@healthy("middle of a rectangle, map of warmth", seeds=SEEDS)
def warmth(watch: Watch, seed: int) -> Check:
    """A bump of which most pixels are near zero: the loss is small from the start and matters all the same."""
    picture, box, _, _ = frames(seed)
    rows, columns = torch.meshgrid(torch.arange(12) + 0.5, torch.arange(12) + 0.5, indexing="ij")
    far = (rows - box[:, 0, None, None]) ** 2 + (columns - box[:, 1, None, None]) ** 2
    data, model = split(picture, (-far / 2).exp()[:, None]), Segmenter(16)
    fit(watch, model, Adam(model.parameters(), lr=4e-3), pairs(*data[:2], steps=300, size=24, seed=seed), F.mse_loss,
        holdout=[kept(data)[:100]], loss=F.mse_loss)  # fmt: skip
    with torch.no_grad():
        best = model(data[2]).flatten(1).argmax(1)
    true = data[3].flatten(1).argmax(1)
    apart = torch.stack([best // 12 - true // 12, best % 12 - true % 12]).float().norm(dim=0)
    return below(float(apart.mean()), 1.5)
