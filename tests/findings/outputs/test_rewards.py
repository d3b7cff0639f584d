"""A reward that falls while a policy is trained."""

from __future__ import annotations

import math

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling
from learnscope.findings import find


def trained(rewards: list[float], key: str = "reward") -> MadeTraining:
    run = MadeTraining().train(falling(len(rewards)))
    for step, reward in enumerate(rewards, 1):
        run.model("Loss", step, **{key: reward})
    return run


def going(start: float, end: float, n: int = 300, noise: float = 0.2) -> list[float]:
    course = end + (start - end) * np.exp(-5 * np.arange(n) / n)
    return (course + noise * np.random.default_rng(1).standard_normal(n)).tolist()


@pytest.mark.parametrize("key", ["reward", "episode_return"])
def test_a_policy_that_learns_to_get_less(key: str) -> None:
    [finding] = trained(going(0.0, -2.5), key).alarms
    assert (finding.kind, finding.cause, finding.since) == ("loss_maximised", True, 1)
    assert "takes knowledge" in finding.detail
    assert f"`{key}` was" in finding.detail
    assert "gets harder" in finding.alternatives[0]


def test_rewards_of_sound_trainings() -> None:
    assert find(trained(going(0.0, 2.5)).reader) == []
    assert find(trained(going(0.0, 0.0)).reader) == []
    assert find(trained(going(0.0, -0.3, noise=0.5)).reader) == []  # no more than it varies


def test_a_policy_that_broke_has_no_wrong_sign() -> None:
    rewards = [*going(0.0, 2.0, 150), *going(2.0, -2.0, 150)]
    assert find(trained(rewards).reader) == []
    assert find(trained([*going(0.0, -2.0, 150), *going(-2.0, 1.0, 150)]).reader) == []  # it comes back


def test_awkward_rewards() -> None:
    assert find(trained([0.0] * 300).reader) == []
    assert find(trained(going(0.0, -2.5), "reward_std").reader) == []
    assert find(trained([math.nan] * 300).reader) == []
    assert find(trained(going(0.0, -2.5, 8)).reader) == []
