"""Faults that no other case has: the optimizer, the order of calls, parts that are not trained, several players."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.checkpoint import checkpoint

from zoo.loops import accuracy, classes, explained, fit, last, squares
from zoo.material import pairs, teacher
from zoo.models import mlp, parameters
from zoo.registry import Check, Watch, below, fault, worse_than
from zoo.unseen.blind_faults import held
from zoo.unseen.blind_material import (
    Bags,
    Factors,
    Graph,
    Reader,
    Waves,
    bags,
    blocks,
    ratings,
    sentences,
    split,
    squares_by_hand,
    waves,
)

UNTRAINED = {"frozen", "no_gradient", "not_moving", "not_optimised"}
TOO_HIGH = {"diverging", "learning_rate_too_high", "nonfinite"}


@fault("decay of an epoch at every batch, ratings", {"learning_rate_too_low", "learning_rate_zero", "schedule_twice"},
       since=None)  # fmt: skip
def decayed(watch: Watch, seed: int) -> Check:
    """ExponentialLR with 0.9, which was meant for epochs."""
    data, model = ratings(seed=seed), Factors()
    optimizer = Adam(model.parameters(), lr=5e-3)
    fit(watch, model, optimizer, pairs(*data[:2], steps=400, size=64, seed=seed), squares,
        schedule=ExponentialLR(optimizer, 0.9), holdout=held(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.4)


@fault("weight decay of 30, transformer over sentences", {"weight_decay_too_strong"})
def decay_of_norms(watch: Watch, seed: int) -> Check:
    tokens, label = sentences(seed=seed)
    data, model = split(tokens, label), Reader()
    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=30)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=200, size=32, seed=seed), holdout=held(data))
    return worse_than(last(losses), 0.6)


@fault("clipped before the scale is taken off, waves", {"clipped_hard", "learning_rate_too_low"})
def clipped_scaled(watch: Watch, seed: int) -> Check:
    """scaler.unscale_ was forgotten: a norm of 1 of the scaled gradient is one of 1/65536."""
    data, model = waves(seed=seed), Waves()
    optimizer, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=65536.0)
    losses = []
    with watch(model, optimizer, holdout=held(data)) as w:
        for x, y in pairs(*data[:2], steps=200, size=32, seed=seed):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            w.log(loss=loss)
            losses.append(loss.item())
    return worse_than(last(losses), 1.3)


class Checkpointed(nn.Module):
    """A checkpoint of the old kind: its input needs no gradient, so that nothing inside gets one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 4)), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=True))


@fault("checkpoint without a gradient, regression", UNTRAINED)
def cut_off(watch: Watch, seed: int) -> Check:
    data, model = teacher(3000, seed=seed), Checkpointed()
    fit(watch, model, Adam(model.parameters(), lr=5e-3), pairs(*data[:2], steps=200, size=64, seed=seed), squares,
        holdout=held(data), loss=F.mse_loss)  # fmt: skip
    return below(explained(model, *data[2:]), 0.6)


@fault("optimizer of a model that was copied, graph", UNTRAINED)
def copied(watch: Watch, seed: int) -> Check:
    adjacency, features, group = blocks(seed=seed)
    model = Graph(adjacency)
    optimizer = Adam(model.parameters(), lr=1e-2)
    model = copy.deepcopy(model)  # as a move to another device may do
    losses = fit(watch, model, optimizer, [(features, group)] * 120)
    return worse_than(last(losses), 1.2)


@fault("scales of the norms zero and frozen, waves", {*UNTRAINED, "vanishing", "dead_units", "zero_gradients"})
def dead_norms(watch: Watch, seed: int) -> Check:
    """γ = 0 for residual branches, in a model that has none."""
    data, model = waves(seed=seed), Waves(norm=True)
    for layer in (model.body[1], model.body[5]):
        nn.init.zeros_(layer.weight)
        layer.weight.requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=200, size=32, seed=seed), holdout=held(data))
    return worse_than(last(losses), 1.2)


@fault("dropout of 0.97, waves", {"dropout_too_strong"}, since=None)
def heavy_dropout(watch: Watch, seed: int) -> Check:
    """0.03 was meant."""
    data, model = waves(seed=seed), Waves(dropout=0.97)
    losses = fit(
        watch, model, Adam(model.parameters(), lr=2e-3), pairs(*data[:2], steps=250, size=32, seed=seed),
        holdout=held(data),
    )  # fmt: skip
    return worse_than(last(losses), 1.0)


@fault("betas exchanged, bags", {*TOO_HIGH, "momentum_too_high"}, since=None)
def exchanged(watch: Watch, seed: int) -> Check:
    data, model = bags(seed=seed), Bags()
    optimizer = Adam(model.parameters(), lr=2e-2, betas=(0.999, 0.9))
    losses = fit(watch, model, optimizer, pairs(*data[:2], steps=250, size=32, seed=seed), squares, holdout=held(data),
                 loss=F.mse_loss)  # fmt: skip
    return worse_than(last(losses), 0.3)


@fault("train() forgotten after evaluation, waves", {"eval_mode_training"}, since=31)
def stays_in_eval(watch: Watch, seed: int) -> Check | None:
    data, model = waves(seed=seed), Waves(norm=True, dropout=0.3)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model, optimizer, holdout=held(data)) as w:
        for number, (x, y) in enumerate(pairs(*data[:2], steps=180, size=32, seed=seed), 1):
            loss = classes(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if number % 30 == 0:
                accuracy(model, *data[2:])  # leaves it in eval mode
    return None


@fault("rate of 30, loss by hand", TOO_HIGH)
def wild_by_hand(watch: Watch, seed: int) -> Check:
    data, model = teacher(2000, seed=seed), mlp(16, 32, 1)
    batches = pairs(*data[:2], steps=150, size=64, seed=seed)
    losses = fit(watch, model, SGD(model.parameters(), lr=30.0), batches, squares_by_hand)
    return worse_than(last(losses), 2.0)


@fault("neighbours added up through six layers, graph", {*TOO_HIGH, "exploding", "exploding_initialisation"})
def summed_neighbours(watch: Watch, seed: int) -> Check:
    """The adjacency was not normalised."""
    adjacency, features, group = blocks(seed=seed)
    model = Graph(adjacency, mean=False, layers=6)
    losses = fit(watch, model, SGD(model.parameters(), lr=0.05), [(features, group)] * 120)
    return worse_than(last(losses), 1.3)


def points(count: int) -> Tensor:
    angle = 6.283 * torch.rand(count, 1)
    return torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


def played(watch: Watch, *, rates: tuple[float, float], detached: bool = False, steps: int = 250) -> Tensor:
    """Two players; what the generator makes in the end."""
    maker, judge = mlp(4, 32, 2), mlp(2, 32, 1)
    both = nn.ModuleDict({"maker": maker, "judge": judge})
    first, second = Adam(maker.parameters(), lr=rates[0]), Adam(judge.parameters(), lr=rates[1])
    with watch(both, [first, second]) as w:
        for _ in range(steps):
            real, made = points(64), maker(torch.randn(64, 4))
            loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
            second.zero_grad()
            loss.backward()
            second.step()
            cheated = F.softplus(-judge(made.detach() if detached else made)).mean()
            first.zero_grad()
            cheated.backward()
            first.step()
            w.log(loss=loss, maker=cheated)
    with torch.no_grad():
        return maker(torch.randn(500, 4))


def off(made: Tensor) -> float:
    """Mean distance from the ring of what was made."""
    return float((made.norm(dim=1) - 1).abs().mean())


@fault("rate of the discriminator zero, ring", {"learning_rate_zero"})
def idle_judge(watch: Watch, seed: int) -> Check:
    return worse_than(off(played(watch, rates=(2e-3, 0.0))), 0.2)


@fault("generator cut off, ring", {*UNTRAINED, "zero_gradients", "steps_without_backward"})
def cut_maker(watch: Watch, seed: int) -> Check:
    return worse_than(off(played(watch, rates=(2e-3, 2e-3), detached=True)), 0.3)


def bandit(watch: Watch, *, sign: float, rates: tuple[float, float], seed: int) -> tuple[float, list[float]]:
    """Five arms, whose worth depends on what is seen; a policy and a critic. Mean reward at the end, critic's loss."""
    g = torch.Generator().manual_seed(seed)
    worth = torch.randn(6, 5, generator=g)
    policy, critic = mlp(6, 32, 5), mlp(6, 32, 1)
    both = nn.ModuleDict({"policy": policy, "critic": critic})
    first, second = Adam(policy.parameters(), lr=rates[0]), SGD(critic.parameters(), lr=rates[1])
    rewards, losses = [], []
    with watch(both, [first, second]) as w:
        for _ in range(250):
            seen = torch.randn(64, 6, generator=g)
            chances = policy(seen).softmax(1)
            arm = torch.multinomial(chances.detach(), 1, generator=g)
            reward = (seen @ worth).gather(1, arm)
            value = critic(seen)
            loss = -sign * (chances.gather(1, arm).log() * (reward - value.detach()).nan_to_num().clamp(-5, 5)).mean()
            first.zero_grad()
            loss.backward()
            first.step()
            error = ((value - reward) ** 2).mean()
            second.zero_grad()
            error.backward()
            second.step()
            w.log(loss=loss, critic=error, reward=reward.mean())
            rewards.append(float(reward.mean()))
            losses.append(float(error.detach()))
    return last(rewards), losses


@fault("sign of the reward, bandit", {"loss_maximised"}, since=None)
def wrong_sign(watch: Watch, seed: int) -> Check:
    return below(bandit(watch, sign=-1.0, rates=(5e-3, 0.02), seed=seed)[0], 0.0)


@fault("rate of the critic too high, bandit", TOO_HIGH, since=None)
def wild_critic(watch: Watch, seed: int) -> Check:
    losses = bandit(watch, sign=1.0, rates=(5e-3, 1.0), seed=seed)[1]
    return worse_than(last(losses), 20.0)


@fault("critic in front of the optimizer's reach, bandit", UNTRAINED)
def forgotten_critic(watch: Watch, seed: int) -> Check:
    """The optimizer was given the policy alone, and the loss has both."""
    g = torch.Generator().manual_seed(seed)
    worth, model = torch.randn(6, 5, generator=g), nn.ModuleDict({"policy": mlp(6, 32, 5), "critic": mlp(6, 32, 1)})
    optimizer, errors = Adam(parameters(model["policy"]), lr=5e-3), []
    with watch(model, optimizer) as w:
        for _ in range(200):
            seen = torch.randn(64, 6, generator=g)
            chances: Any = model["policy"](seen).softmax(1)
            arm = torch.multinomial(chances.detach(), 1, generator=g)
            reward, value = (seen @ worth).gather(1, arm), model["critic"](seen)
            error = ((value - reward) ** 2).mean()
            loss = -(chances.gather(1, arm).log() * (reward - value.detach())).mean() + error
            model.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            errors.append(float(error.detach()))
    return worse_than(last(errors), 0.5 * errors[0])
