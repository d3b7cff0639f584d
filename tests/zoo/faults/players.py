"""Faults in loops with several optimizers: two players, a policy and its critic."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from zoo.loops import last
from zoo.material import digits, pairs
from zoo.models import mlp
from zoo.registry import Check, Watch, fault, worse_than

WILD = {"diverging", "learning_rate_too_high", "nonfinite", "exploding"}


def match(
    watch: Watch, seed: int, *, rates: tuple[float, float] = (1e-3, 1e-3), steps: tuple[bool, bool] = (True, True),
    saturating: bool = False, spoil: int | None = None,
) -> tuple[list[float], nn.Module]:  # fmt: skip
    """A generator of digits against a discriminator."""
    data = digits()
    maker, judge = mlp(8, 48, 64), mlp(64, 48, 1)
    both = nn.ModuleDict({"maker": maker, "judge": judge})
    first, second = Adam(maker.parameters(), lr=rates[0]), Adam(judge.parameters(), lr=rates[1])
    taken = []
    with watch(both, [first, second]) as w:
        for number, (real, _) in enumerate(pairs(*data[:2], steps=250, seed=seed), 1):
            made = maker(torch.randn(len(real), 8) * (float("nan") if number == spoil else 1.0))
            loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
            second.zero_grad()
            loss.backward()
            if steps[1]:
                second.step()
            cheated = -F.softplus(judge(made)).mean() if saturating else F.softplus(-judge(made)).mean()
            first.zero_grad()
            cheated.backward()
            if steps[0]:
                first.step()
            w.log(loss=loss, maker_loss=cheated)
            taken.append(float(loss.detach()))
    return taken, maker


@fault("learning rate of one player zero, GAN", {"learning_rate_zero"}, where="1")
def idle(watch: Watch, seed: int) -> Check | None:
    match(watch, seed, rates=(1e-3, 0.0))
    return None


@fault("one player is never stepped, GAN", {"not_moving", "frozen", "not_optimised", "backward_without_step"})
def unstepped(watch: Watch, seed: int) -> Check | None:
    match(watch, seed, steps=(False, True))
    return None


@fault("learning rate of one player too high, GAN", WILD)
def wild(watch: Watch, seed: int) -> Check:
    losses = match(watch, seed, rates=(1e-3, 3.0))[0]
    return worse_than(last(losses), 3.0)


@fault("NaN in what one player is given, GAN", {"nonfinite", "data_not_finite", "bad_batch"}, since=120)
def spoiled(watch: Watch, seed: int) -> Check:
    return worse_than(last(match(watch, seed, spoil=120)[0]), 100)


@fault(
    "one player far too strong, GAN", {"vanishing", "zero_gradients", "not_moving", "learning_rate_too_low"}, since=None
)
def too_strong(watch: Watch, seed: int) -> Check | None:
    """The loss of the generator is flat where the discriminator is sure."""
    match(watch, seed, rates=(1e-5, 2e-2), saturating=True)
    return None


def walk(watch: Watch, seed: int, rates: tuple[float, float]) -> list[float]:
    """A policy and a critic of what five doors are worth."""
    g = torch.Generator().manual_seed(seed)
    worth = torch.randn(8, 5, generator=g)
    policy, critic = mlp(8, 32, 5), mlp(8, 32, 1)
    both = nn.ModuleDict({"policy": policy, "critic": critic})
    first, second = Adam(policy.parameters(), lr=rates[0]), SGD(critic.parameters(), lr=rates[1])
    errors = []
    with watch(both, [first, second]) as w:
        for _ in range(200):
            seen = torch.randn(48, 8, generator=g)
            logits = policy(seen)
            door = torch.multinomial(logits.detach().softmax(1), 1, generator=g)
            reward, value = (seen @ worth).gather(1, door), critic(seen)
            gain = (reward - value.detach()).nan_to_num().clamp(-3, 3)
            loss: Tensor = -(logits.log_softmax(1).gather(1, door) * gain).mean()
            first.zero_grad()
            loss.backward()
            first.step()
            error = F.mse_loss(value, reward)
            second.zero_grad()
            error.backward()
            second.step()
            w.log(loss=loss, critic_loss=error)
            errors.append(float(error.detach()))
    return errors


@fault("learning rate of the critic too high, doors", WILD)
def wild_critic(watch: Watch, seed: int) -> Check:
    return worse_than(last(walk(watch, seed, (3e-3, 2.0))), 50.0)


@fault("learning rate of the policy zero, doors", {"learning_rate_zero"}, where="0")
def idle_policy(watch: Watch, seed: int) -> Check | None:
    walk(watch, seed, (0.0, 0.02))
    return None
