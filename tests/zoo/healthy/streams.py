"""Data that change while they are used: augmented, ordered by difficulty, made by the model's own actions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from zoo.loops import accuracy, classes, fit
from zoo.material import digits, holdout, pairs, passages, rows_of
from zoo.models import cnn, hf_bert, mlp
from zoo.registry import Check, Watch, above, healthy


@healthy("augmented images, CNN")
def augmented(watch: Watch, seed: int) -> Check:
    """Shifted by a pixel, and noise."""
    data, model = digits(images=True), cnn(norm=True, dropout=0.2)
    g = torch.Generator().manual_seed(seed)

    def changed(x: Tensor) -> Tensor:
        shift = torch.randint(-1, 2, (2,), generator=g).tolist()
        return torch.roll(x, shift, (2, 3)) + 0.05 * torch.randn(x.shape, generator=g)

    batches = ((changed(x), y) for x, y in pairs(*data[:2], steps=250, seed=seed))
    fit(watch, model, SGD(model.parameters(), lr=0.05, momentum=0.9), batches, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.8)


@healthy("mixed examples and soft labels, MLP")
def mixed(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    g = torch.Generator().manual_seed(seed)

    def mix(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        share, order = 0.5 + 0.5 * torch.rand(1, generator=g), torch.randperm(len(x), generator=g)
        hot = F.one_hot(y, 10).float()
        return share * x + (1 - share) * x[order], share * hot + (1 - share) * hot[order]

    batches = (mix(x, y) for x, y in pairs(*data[:2], steps=300, seed=seed))
    fit(watch, model, Adam(model.parameters(), lr=3e-3), batches, holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.9)


@healthy("easy examples first, curriculum")
def curriculum(watch: Watch, seed: int) -> Check:
    """Two classes, then five, then ten: the loss rises twice, as it should."""
    data, model = digits(), mlp(64, 64, 10)

    def stages() -> Iterator[tuple[Tensor, Tensor]]:
        for number, (known, steps) in enumerate(((2, 60), (5, 80), (10, 220))):
            keep = data[1] < known
            yield from pairs(data[0][keep], data[1][keep], steps=steps, seed=seed + number)

    fit(watch, model, Adam(model.parameters(), lr=3e-3), stages(), holdout=holdout(data))
    return above(accuracy(model, *data[2:]), 0.88)


@healthy("examples by their ids, no label wrong")
def clean_ids(watch: Watch, seed: int) -> Check:
    data, model = digits(), mlp(64, 64, 10)
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model, optimizer, holdout=holdout(data), ledger=True) as w:
        for rows in rows_of(1397, steps=280, seed=seed):
            logits = model(data[0][rows])
            loss = classes(logits, data[1][rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            w.examples(rows, logits, data[1][rows])
    return above(accuracy(model, *data[2:]), 0.9)


class Corridor:
    """Eight cells; the goal is at the right end, and every step costs a little."""

    def __init__(self) -> None:
        self.place = 0

    def seen(self) -> Tensor:
        return F.one_hot(torch.tensor(self.place), 8).float()

    def act(self, action: int) -> tuple[float, bool]:
        self.place = min(7, max(0, self.place + (1 if action else -1)))
        return (1.0, True) if self.place == 7 else (-0.05, False)


def episode(policy: nn.Module, limit: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """States, actions and the rewards still to come."""
    world, states, actions, rewards = Corridor(), [], [], []
    for _ in range(limit):
        state = world.seen()
        with torch.no_grad():
            action = Categorical(logits=policy(state)).sample()
        reward, over = world.act(int(action))
        states.append(state)
        actions.append(action)
        rewards.append(reward)
        if over:
            break
    to_come, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.97 * total
        to_come.append(total)
    return torch.stack(states), torch.stack(actions), torch.tensor(to_come[::-1])


@healthy("policy gradient, corridor")
def policy_gradient(watch: Watch, seed: int) -> Check:
    """The loss of a policy gradient has no scale and need not fall; the return does rise."""
    policy, returns = mlp(8, 32, 2), []
    optimizer = Adam(policy.parameters(), lr=1e-2)
    with watch(policy, optimizer) as w:
        for _ in range(150):
            states, actions, to_come = episode(policy)
            returns.append(float(to_come[0]))
            advantage = to_come - sum(returns[-20:]) / len(returns[-20:])
            loss = -(Categorical(logits=policy(states)).log_prob(actions) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return above(sum(returns[-20:]) / 20, 0.4)


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(8, 32, 2), mlp(8, 32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(x), self.critic(x).squeeze(-1)


@healthy("actor and critic, corridor")
def actor_critic(watch: Watch, seed: int) -> Check:
    model, returns = ActorCritic(), []
    optimizer = Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as w:
        for _ in range(150):
            states, actions, to_come = episode(model.actor)
            returns.append(float(to_come[0]))
            logits, value = model(states)
            choice = Categorical(logits=logits)
            actor = -(choice.log_prob(actions) * (to_come - value.detach())).mean()
            loss = actor + 0.5 * F.mse_loss(value, to_come) - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            w.log(loss=loss)
    return above(sum(returns[-20:]) / 20, 0.4)


@healthy("text classes, BERT", seeds=(0, 1))
def bert(watch: Watch, seed: int) -> Check:
    """Does the passage begin with a letter after o?"""
    model, text = hf_bert(hidden_dropout_prob=0.1), passages(1000, 8, seed=seed)
    labels, held = (text[:, 0] > 15).long(), passages(100, 8, held_out=True)
    watching = {"holdout": [{"input_ids": held, "labels": (held[:, 0] > 15).long()}]}
    optimizer = AdamW(model.parameters(), lr=3e-3)
    with watch(model, optimizer, **watching) as w:
        for x, y in pairs(text, labels, steps=200, size=32, seed=seed):
            loss = model(input_ids=x, labels=y).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            w.log(loss=loss)
    return above(accuracy(model, held, (held[:, 0] > 15).long()), 0.9)
