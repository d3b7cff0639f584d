"""Sound trainings of the fourth blind set: tables of several groups, times and stages."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW

from zoo.loops import accuracy, explained
from zoo.material import pairs, rows_of
from zoo.models import mlp
from zoo.registry import Check, Watch, above, healthy
from zoo.unseen.fourth_material import SEEDS, generator, houses, trades


class Treated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 48), nn.ELU(), nn.Linear(48, 32), nn.ELU())
        self.without, self.treated = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return torch.cat([self.without(h), self.treated(h)], 1)


@healthy("what a treatment does, one of two heads for each", seeds=SEEDS)
def treatment(watch: Watch, seed: int) -> Check:
    """Of each person one of two outcomes is known, and a fifth were treated."""
    data, model, g = houses(seed, 2400), Treated(), generator(seed)
    treated = torch.rand(len(data[0]), generator=g) < 0.2
    effect = 1 + 0.8 * data[0][:, 6]
    outcome = data[1].squeeze(1) + treated * effect
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer) as w:
        for rows in rows_of(len(data[0]), steps=350, size=64, seed=seed):
            said = model(data[0][rows]).gather(1, treated[rows].long()[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(said, outcome[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    with torch.no_grad():
        said = model(data[2]).diff(dim=1).squeeze(1)
    return above(float(torch.corrcoef(torch.stack([said, 1 + 0.8 * data[2][:, 6]]))[0, 1]), 0.7)


@healthy("trades of rare towns, the worst group weighs most", seeds=SEEDS)
def worst_group(watch: Watch, seed: int) -> Check:
    """The weights of three groups rise with their losses; in the rare group the rule is another."""
    data, model, g = trades(seed, 2400), mlp(11, 64, 64, 4), generator(seed)

    def placed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        town = (torch.rand(len(x), generator=g) < 0.12).long() + (torch.rand(len(x), generator=g) < 0.3).long()
        return torch.cat([x, town[:, None].float()], 1), torch.where(town == 2, (y + 1) % 4, y), town

    x, y, town = placed(*data[:2])
    held, right, where = placed(*data[2:])
    weight, optimizer = torch.ones(3) / 3, Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=[(held, right)]) as w:
        for rows in rows_of(len(x), steps=350, size=100, seed=seed):
            each = F.cross_entropy(model(x[rows]), y[rows], reduction="none")
            losses = torch.stack([each[town[rows] == one].sum() / (town[rows] == one).sum().clamp(min=1)
                                  for one in range(3)])  # fmt: skip
            weight = weight * (0.02 * losses.detach()).exp()
            weight = weight / weight.sum()
            loss = weight @ losses
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(min(accuracy(model, held[where == one], right[where == one]) for one in range(3)), 0.7)


@healthy("a rule that turns slowly, one example at a time", seeds=SEEDS)
def drifting(watch: Watch, seed: int) -> Check:
    """A stream that is seen once; what is right changes on the way, and the model follows."""
    g, model = generator(seed), nn.Linear(5, 1)
    optimizer, right = SGD(model.parameters(), lr=0.1), []
    with watch(model, optimizer) as w:
        for step in range(400):
            x = torch.randn(1, 5, generator=g)
            turn = torch.tensor(step / 150)
            y = (x[:, :1] * turn.cos() + x[:, 1:2] * turn.sin() > 0).float()
            said = model(x)
            loss = F.binary_cross_entropy_with_logits(said, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            right.append(float((said > 0) == (y > 0)))
    return above(sum(right[100:]) / 300, 0.78)


@healthy("houses, each stage on what was left, boosting", seeds=SEEDS)
def boosted(watch: Watch, seed: int) -> Check:
    """A stage is trained on what the stages before it left, then stays; the optimizer is given the next."""
    data = houses(seed)
    model = nn.ModuleList(mlp(8, 16, 1) for _ in range(4))
    optimizer = Adagrad(model[0].parameters(), lr=0.05)
    with watch(model, optimizer) as w:
        for stage, part in enumerate(model):
            if stage:
                optimizer.add_param_group({"params": list(part.parameters())})
            for x, y in pairs(*data[:2], steps=80, size=60, seed=10 * seed + stage):
                with torch.no_grad():
                    before = sum((earlier(x) for earlier in model[:stage]), torch.zeros_like(y))
                loss = F.mse_loss(part(x), y - before)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                w.log(loss=loss)

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([part(x) for part in model]).sum(0)

    return above(explained(Sum(), *data[2:]), 0.85)
