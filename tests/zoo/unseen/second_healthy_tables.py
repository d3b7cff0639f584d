"""Sound trainings of the second blind set: pictures and tables."""

from __future__ import annotations

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

from zoo.loops import accuracy, classes, explained, fit, last, squares
from zoo.material import pairs, table
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.second_material import (
    SEEDS,
    columns,
    generator,
    glyphs,
    houses,
    kept,
    masks,
    moons,
    pictures,
    split,
)
from zoo.unseen.second_models import Experts, Mixer, ResNet, Table, UNet


@healthy("shapes, residual network with batch norm and Nesterov", seeds=SEEDS)
def residual(watch: Watch, seed: int) -> Check:
    data, model = pictures(seed), ResNet()
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    fit(watch, model, optimizer, pairs(*data[:2], steps=250, size=32, seed=seed),
        schedule=CosineAnnealingLR(optimizer, 250), holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("outlines, U-Net with two losses", seeds=SEEDS)
def outlines(watch: Watch, seed: int) -> Check:
    """Cross-entropy of each pixel and the overlap."""
    data, model = masks(seed), UNet()

    def objective(out: Tensor, y: Tensor) -> Tensor:
        p = out.sigmoid()
        overlap = (2 * (p * y).sum((1, 2, 3)) + 1) / ((p + y).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(out, y) + (1 - overlap).mean()

    fit(watch, model, AdamW(model.parameters(), lr=4e-3), pairs(*data[:2], steps=250, size=24, seed=seed), objective,
        holdout=kept(data), loss=objective)  # fmt: skip
    with torch.no_grad():
        found, true = model(data[2]) > 0, data[3] > 0.5
    return above(float((found & true).sum() / (found | true).sum()), 0.7)


@healthy("shapes, mixer with smoothed labels", seeds=SEEDS)
def mixed(watch: Watch, seed: int) -> Check:
    data, model = pictures(seed, 2400, noise=0.15), Mixer()
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=20), CosineAnnealingLR(optimizer, 330)],
                            milestones=[20])  # fmt: skip
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    fit(watch, model, optimizer, pairs(*data[:2], steps=350, size=48, seed=seed), smoothed, schedule=schedule,
        holdout=kept(data), loss=smoothed)  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.75)


@healthy("shapes, depthwise convolutions from a loader", seeds=SEEDS)
def depthwise(watch: Watch, seed: int) -> Check:
    data = pictures(seed)
    loader = DataLoader(TensorDataset(*data[:2]), 40, shuffle=True, drop_last=True)

    def apart(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, a, 3, padding=1, groups=a), nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.SiLU()]

    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), *apart(16, 24), nn.MaxPool2d(2), *apart(24, 32),
                          nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 4))  # fmt: skip
    optimizer = RMSprop(model.parameters(), lr=2e-3, alpha=0.9)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for _ in range(8):
            model.train()
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)
            w.log(accuracy=accuracy(model, *data[2:]))
    return above(accuracy(model, *data[2:]), 0.9)


class Dense(nn.Module):
    """Each layer is given all that came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(30 + 16 * n, 16) for n in range(4))
        self.norm, self.head = nn.LayerNorm(94), nn.Linear(94, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], 1)
        return self.head(self.norm(x))


@healthy("tumours, dense connections and NAdam", seeds=SEEDS)
def dense(watch: Watch, seed: int) -> Check:
    data, model = table("breast_cancer"), Dense()
    optimizer = NAdam(model.parameters(), lr=5e-4, weight_decay=1e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=150, size=64, seed=seed), holdout=kept(data))
    return above(accuracy(model, *data[2:]), 0.93)


@healthy("categories and numbers, embeddings with Adagrad", seeds=SEEDS)
def categories(watch: Watch, seed: int) -> Check:
    data, model = columns(seed, 4000), Table()
    optimizer = Adagrad(model.parameters(), lr=0.05)
    fit(watch, model, optimizer, pairs(*data[:2], steps=400, size=64, seed=seed), holdout=kept(data))
    return above(accuracy(model, *data[2:]), 0.8)


class Tokens(nn.Module):
    """A token a column, one more for the answer, and attention between them."""

    def __init__(self, inputs: int, outputs: int, width: int = 24) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(inputs, width) / 2), nn.Parameter(torch.zeros(inputs, width))
        self.answer = nn.Parameter(torch.randn(1, 1, width) / 2)
        layer = nn.TransformerEncoderLayer(width, 4, 48, 0.1, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([self.answer.expand(len(x), -1, -1), x[..., None] * self.scale + self.shift], 1)
        return self.head(self.body(rows)[:, 0])


@healthy("columns as tokens, wine", seeds=SEEDS)
def tokens_of_columns(watch: Watch, seed: int) -> Check:
    data, model = table("wine"), Tokens(13, 3)
    fit(watch, model, AdamW(model.parameters(), lr=1e-3), pairs(*data[:2], steps=120, size=24, seed=seed),
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("three measures of twenty men, linear", seeds=SEEDS)
def linnerud(watch: Watch, seed: int) -> Check:
    """Twenty rows, all of them in every step."""
    x, y = (torch.tensor(part).float() for part in datasets.load_linnerud(return_X_y=True))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
    model = nn.Linear(3, 3)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
    taken = fit(watch, model, optimizer, [(x, y)] * 150, squares)
    best = float((y - x @ torch.linalg.lstsq(x, y).solution).square().mean())
    return below(last(taken), 1.1 * best)


@healthy("prices, wide network with steps of the rate", seeds=SEEDS)
def prices(watch: Watch, seed: int) -> Check:
    data, model = houses(seed, 4000), mlp(8, 128, 64, 1, activation=nn.GELU)
    optimizer = AdamW(model.parameters(), lr=4e-3)
    huber = nn.SmoothL1Loss(beta=0.5)
    fit(watch, model, optimizer, pairs(*data[:2], steps=400, size=64, seed=seed), huber,
        schedule=MultiStepLR(optimizer, [250, 350], 0.3), holdout=kept(data), loss=huber)  # fmt: skip
    return above(explained(model, *data[2:]), 0.8)


@healthy("prices, four experts that share", seeds=SEEDS)
def experts(watch: Watch, seed: int) -> Check:
    """With a term that keeps the shares of the experts even."""
    data, model = houses(seed, 3000), Experts()
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model, optimizer, holdout=kept(data), loss=F.mse_loss) as w:
        for x, y in pairs(*data[:2], steps=350, size=64, seed=seed):
            share = model.router(x).softmax(1).mean(0)
            error = F.mse_loss(model(x), y)
            loss = error + 0.02 * (4 * share.square().sum() - 1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            w.log(loss=loss, error=error)
    return above(explained(model, *data[2:]), 0.75)


@healthy("moons, random features that stay", seeds=SEEDS)
def features(watch: Watch, seed: int) -> Check:
    """Cosines with drawn frequencies, and a linear layer by plain gradient descent."""
    data = moons(seed)
    frequency, phase = 2 * torch.randn(2, 128), 6.28 * torch.rand(128)

    def seen(x: Tensor) -> Tensor:
        return (x @ frequency + phase).cos()

    model = nn.Linear(128, 2)
    data = (seen(data[0]), data[1], seen(data[2]), data[3])
    fit(watch, model, SGD(model.parameters(), lr=0.3), pairs(*data[:2], steps=250, size=50, seed=seed),
        holdout=kept(data))  # fmt: skip
    return above(accuracy(model, *data[2:]), 0.93)


@healthy("time until an event, partial likelihood", seeds=SEEDS)
def survival(watch: Watch, seed: int) -> Check:
    """Cox: who of those still there is next? A third of the times are cut off."""
    g = generator(seed)
    x = torch.randn(1200, 6, generator=g)
    risk = x[:, 0] - x[:, 1] * x[:, 2]
    time = torch.empty(1200).exponential_(generator=g) * (-risk).exp()
    seen = (torch.rand(1200, generator=g) < 0.67).float()
    model, taken = mlp(6, 48, 1), []
    optimizer = AdamW(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for rows, _ in pairs(torch.arange(900), torch.arange(900), steps=250, size=100, seed=seed):
            order = rows[time[rows].argsort(descending=True)]
            score = model(x[order]).squeeze(1)
            loss = -((score - score.logcumsumexp(0)) * seen[order]).sum() / seen[order].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            taken.append(loss.item())
    with torch.no_grad():
        said = model(x[900:]).squeeze(1)
    return above(float(torch.corrcoef(torch.stack([said, risk[900:]]))[0, 1]), 0.6)


@healthy("a picture from its places, sines all the way", seeds=SEEDS)
def places(watch: Watch, seed: int) -> Check:
    """One picture is all there is: the whole of it in every step."""
    row, column = torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij")
    x = torch.stack([row, column], 2).view(-1, 2)
    y = ((6 * row).sin() * (4 * column + seed).cos() + (row.square() + column.square() < 0.4)).view(-1, 1).float()

    class Sine(nn.Module):
        def __init__(self, a: int, b: int, span: float) -> None:
            super().__init__()
            self.linear = nn.Linear(a, b)
            nn.init.uniform_(self.linear.weight, -span, span)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).mul(12).sin()

    model = nn.Sequential(Sine(2, 48, 0.5), Sine(48, 48, 0.03), nn.Linear(48, 1))
    fit(watch, model, Adam(model.parameters(), lr=1e-3), [(x, y)] * 300, squares)
    return above(explained(model, x, y), 0.85)


@healthy("features that do not tell the source, reversed gradient", seeds=SEEDS)
def reversed_gradient(watch: Watch, seed: int) -> Check:
    """Two sources of pictures; a second head tries to tell them apart, and the body works against it."""
    x, kind, _ = glyphs(1600, noise=0.2, seed=seed)
    source = torch.arange(1600) % 2
    x = x + 0.3 * source[:, None, None, None]

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kind, self.source = mlp(144, 96, 48), mlp(48, 24, 4), mlp(48, 24, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.relu(self.body(x.flatten(1)))
            against = h.detach() * 1.2 - h * 0.2  # the gradient comes back times −0.2
            return self.kind(h), self.source(against)

    model = Both()
    optimizer, rows = Adam(model.parameters(), lr=2e-3), torch.arange(1200)
    with watch(model, optimizer) as w:
        for chosen, _ in pairs(rows, rows, steps=350, size=48, seed=seed):
            said, told = model(x[chosen])
            loss = classes(said, kind[chosen]) + classes(told, source[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        return above(float((model(x[1200:])[0].argmax(1) == kind[1200:]).double().mean()), 0.6)


@healthy("answers on the way, exits at three depths", seeds=SEEDS)
def exits(watch: Watch, seed: int) -> Check:
    drawn = datasets.make_classification(2400, 16, n_informative=8, n_classes=3, class_sep=1.5, random_state=seed)
    data = split(torch.tensor(drawn[0]).float(), torch.tensor(drawn[1]))

    class Exits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(nn.Linear(a, 32) for a in (16, 32, 32))
            self.heads = nn.ModuleList(nn.Linear(32, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            said = []
            for stage, head in zip(self.stages, self.heads, strict=True):
                x = F.relu(stage(x))
                said.append(head(x))
            return torch.stack(said)

    model = Exits()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=250, size=50, seed=seed):
            loss = torch.stack(
                [weight * classes(out, y) for weight, out in zip((0.3, 0.5, 1.0), model(x), strict=True)]
            )
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
            w.log(loss=loss.sum())
    with torch.no_grad():
        return above(float((model(data[2])[-1].argmax(1) == data[3]).double().mean()), 0.8)
