"""Sound trainings of the third blind set: tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.optim import SGD, Adam, Adamax, AdamW, RAdam
from torch.optim.lr_scheduler import PolynomialLR

from zoo.loops import accuracy, explained, fit
from zoo.material import pairs, table
from zoo.models import mlp
from zoo.registry import Check, Watch, above, below, healthy
from zoo.unseen.third_material import SEEDS, generator, kept, rides, split, visits


@healthy("turnover in hundreds of thousands, bias at the mean", seeds=SEEDS)
def turnover(watch: Watch, seed: int) -> Check:
    """Nothing is scaled but the last layer, which begins at the mean and in units of the spread."""
    data, model = rides(seed), mlp(6, 64, 64, 1)
    y, held = 300_000 + 80_000 * data[1], 300_000 + 80_000 * data[3]
    with torch.no_grad():
        model[-1].weight.mul_(float(y.std()))
        model[-1].bias.fill_(float(y.mean()))
    rates = [{"params": model[:-1].parameters(), "lr": 3e-3}, {"params": model[-1].parameters(), "lr": 300.0}]
    fit(watch, model, Adam(rates), pairs(data[0], y, steps=250, size=50, seed=seed), F.mse_loss,
        holdout=[(data[2], held)], loss=F.mse_loss)  # fmt: skip
    return above(explained(model, data[2], held), 0.8)


@healthy("returns that are nearly all noise, linear", seeds=SEEDS)
def nearly_noise(watch: Watch, seed: int) -> Check:
    """A tenth of the variance can be explained, and is."""
    g = generator(seed)
    x = torch.randn(4000, 8, generator=g)
    slope = torch.randn(8, 1, generator=g)
    data = split(x, x @ slope / slope.norm() + 3 * torch.randn(4000, 1, generator=g))
    model = nn.Linear(8, 1)
    optimizer = SGD(model.parameters(), lr=0.02)
    fit(watch, model, optimizer, pairs(*data[:2], steps=350, size=100, seed=seed), F.mse_loss,
        schedule=PolynomialLR(optimizer, 350), holdout=kept(data, 1000), loss=nn.MSELoss())  # fmt: skip
    return above(explained(model, *data[2:]), 0.06)


@healthy("visitors, batches that grow", seeds=SEEDS)
def growing(watch: Watch, seed: int) -> Check:
    """From 4 to 256 examples in place of cutting the rate."""
    data, model = visits(seed, flipped=0.1), mlp(12, 48, 3)
    optimizer = SGD(model.parameters(), lr=0.05)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for stage, size in enumerate((4, 16, 64, 256)):
            for x, y in pairs(*data[:2], steps=80, size=size, seed=4 * seed + stage):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                w.log(loss=loss, size=size)
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("tumours, noise added to every step", seeds=SEEDS)
def langevin(watch: Watch, seed: int) -> Check:
    """Samples of the posterior: the steps are noisy on purpose."""
    data, model = table("breast_cancer"), mlp(30, 16, 2, activation=nn.Tanh)
    optimizer = SGD(model.parameters(), lr=0.02, weight_decay=0.01)
    with watch(model, optimizer, holdout=kept(data, 100)) as w:
        for x, y in pairs(*data[:2], steps=300, size=40, seed=seed):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            for p in model.parameters():
                assert p.grad is not None
                p.grad.add_(torch.randn_like(p), alpha=0.05)
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.93)


@healthy("visitors, each example's gradient cut and noise on the sum", seeds=SEEDS)
def private(watch: Watch, seed: int) -> Check:
    data, model = visits(seed), mlp(12, 32, 3)
    optimizer = SGD(model.parameters(), lr=0.5)

    def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    each = vmap(grad(one), in_dims=(None, 0, 0))
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=200, size=60, seed=seed):
            found = each({name: p.detach() for name, p in model.named_parameters()}, x, y)
            norm = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
            cut = (0.5 / norm).clamp(max=1)
            for name, p in model.named_parameters():
                total = torch.einsum("n,n...->...", cut, found[name])
                p.grad = (total + 0.5 * torch.randn_like(total)) / len(x)
            optimizer.step()
            with torch.no_grad():
                w.log(loss=F.cross_entropy(model(x), y))
    return above(accuracy(model, *data[2:]), 0.85)


@healthy("visitors, only the hardest of a batch count", seeds=SEEDS)
def hardest(watch: Watch, seed: int) -> Check:
    """What is logged is the loss of the hardest quarter, which stays high."""
    data, model = visits(seed, flipped=0.03), mlp(12, 48, 48, 3)
    optimizer = Adamax(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=kept(data)) as w:
        for x, y in pairs(*data[:2], steps=300, size=80, seed=seed):
            loss = F.cross_entropy(model(x), y, reduction="none").topk(20).values.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, *data[2:]), 0.9)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.amount, self.kind = nn.Sequential(mlp(6, 48, 48), nn.ReLU()), nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.amount(h), self.kind(h)


@healthy("rides and whether it rained, gradients that do not fight", seeds=SEEDS)
def no_fight(watch: Watch, seed: int) -> Check:
    """Of each task's gradient, what works against the other's is taken off; then they are set by hand."""
    data, model = rides(seed), Both()
    optimizer = RAdam(model.parameters(), lr=5e-3)
    shared = list(model.body.parameters())
    with watch(model, optimizer) as w:
        for x, y in pairs(*data[:2], steps=300, size=50, seed=seed):
            amount, kind = model(x)
            losses = F.mse_loss(amount, y), F.binary_cross_entropy_with_logits(kind, (x[:, 2:3] > 0).float())
            optimizer.zero_grad()
            both = [torch.autograd.grad(loss, shared, retain_graph=True) for loss in losses]
            sum(losses).backward()  # type: ignore[union-attr]
            a, b = (torch.cat([g.flatten() for g in found]) for found in both)
            inner = (a @ b).clamp(max=0)
            total = a - inner * b / b.square().sum() + b - inner * a / a.square().sum()
            for p, part in zip(shared, total.split([p.numel() for p in shared]), strict=True):
                p.grad = part.view_as(p).clone()
            optimizer.step()
            w.log(loss=sum(losses), amount=losses[0], kind=losses[1])
    with torch.no_grad():
        left = F.mse_loss(model(data[2])[0], data[3]) / data[3].var()
    return below(float(left), 0.2)


@healthy("grades in order, thresholds on one line", seeds=SEEDS)
def grades(watch: Watch, seed: int) -> Check:
    data = rides(seed)
    cuts = data[1].quantile(torch.tensor([0.2, 0.4, 0.6, 0.8]))
    grade, held = torch.bucketize(data[1].squeeze(1), cuts), torch.bucketize(data[3].squeeze(1), cuts)

    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.steps = mlp(6, 48, 1), nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.score(x) - (F.softplus(self.steps).cumsum(0) - 1.5)

    model = Ordered()
    optimizer = AdamW(model.parameters(), lr=5e-3)
    with watch(model, optimizer) as w:
        for x, y in pairs(data[0], grade, steps=300, size=50, seed=seed):
            above_cut = (y[:, None] > torch.arange(4)).float()
            loss = F.binary_cross_entropy_with_logits(model(x), above_cut)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.log(loss=loss)
    with torch.no_grad():
        said = (model(data[2]) > 0).sum(1)
    return below(float((said - held).abs().double().mean()), 0.45)


@healthy("claims with heavy tails, absolute error", seeds=SEEDS)
def tails(watch: Watch, seed: int) -> Check:
    """Some claims are a hundred times the usual: the loss jumps and the median is learned."""
    data, model = rides(seed), mlp(6, 48, 48, 1)
    noise = torch.distributions.StudentT(1.2)
    torch.manual_seed(seed)
    y = data[1] + 0.3 * noise.sample(data[1].shape)
    fit(watch, model, Adam(model.parameters(), lr=2e-3), pairs(data[0], y, steps=350, size=64, seed=seed), F.l1_loss,
        holdout=kept(data), loss=F.l1_loss)  # fmt: skip
    return above(explained(model, *data[2:]), 0.65)


@healthy("sales of which most are none, whether and how many", seeds=SEEDS)
def whether(watch: Watch, seed: int) -> Check:
    """A probability of selling and a rate, by hand: most targets are zero."""
    g = generator(seed)
    x = torch.randn(2400, 6, generator=g)
    sells = torch.rand(2400, generator=g) < torch.sigmoid(2 * x[:, 0] - 1.5)
    rate = (0.8 * x[:, 1] + 0.5).exp()
    data, model = split(x, torch.poisson(rate, generator=g) * sells), mlp(6, 48, 2)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for a, b in pairs(*data[:2], steps=300, size=60, seed=seed):
            gate, log_rate = model(a).unbind(1)
            some = F.logsigmoid(gate) - log_rate.exp() + b * log_rate - torch.lgamma(b + 1)
            none = torch.logaddexp(F.logsigmoid(-gate), F.logsigmoid(gate) - log_rate.exp())
            loss = -torch.where(b > 0, some, none).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        gate, log_rate = model(data[2]).unbind(1)
    said, true = torch.sigmoid(gate) * log_rate.exp(), (torch.sigmoid(2 * x[:, 0] - 1.5) * rate)[len(data[0]) :]
    return above(float(torch.corrcoef(torch.stack([said, true]))[0, 1]), 0.8)
