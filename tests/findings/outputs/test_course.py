"""Spikes, rises and plateaus of the training loss as findings."""

from __future__ import annotations

import numpy as np
import pytest

from findings.made_run import MadeRun
from findings.made_training import LAYERS, MadeTraining, falling, flat
from learnscope.findings import find


def test_a_healthy_loss_has_no_finding() -> None:
    for seed in range(5):
        assert find(MadeTraining().train(falling(seed=seed)).reader) == []


def test_a_bad_batch() -> None:
    losses = falling()
    losses[147] = 56.8
    [finding] = MadeTraining().train(losses).alarms
    assert (finding.kind, finding.severity, finding.cause, finding.since) == ("bad_batch", "warning", True, 148)
    assert finding.title.startswith("The batch of step 148 is unlike the others: a loss of 56.8 where 0.")
    assert "learning rate" not in finding.advice
    assert any("would not have been back at once" in sentence for sentence in finding.ruled_out)
    assert (finding.evidence.n, finding.evidence.value) == (300, 56.8)


def test_a_bad_batch_names_the_layer_whose_gradient_stood_out() -> None:
    losses = falling()
    losses[149] = 56.8
    run = MadeRun(layers=LAYERS)
    for step, loss in enumerate(losses, 1):
        run.loss(step, loss)
        if step % 10 == 0:
            run.gradients(step, {"first": 40.0 if step == 150 else 0.5, "second": 0.5, "last": 0.6})
    [finding] = [finding for finding in find(run.reader) if finding.kind == "bad_batch"]
    assert "The gradient of first stood out most there: 80 times its median before." in finding.detail


def test_a_slow_spike_is_not_said_to_be_one_batch() -> None:
    losses = np.array(falling())
    losses[100:120] += 8 * np.exp(-np.arange(20) / 6)
    [finding] = MadeTraining().train(losses).alarms
    assert (finding.kind, finding.cause) == ("loss_spike", False)
    assert len(finding.alternatives) == 2


def test_a_rise_that_stays() -> None:
    losses = np.array(falling())
    losses[150:] += np.linspace(0, 3, 150)
    [finding] = MadeTraining().train(losses).alarms
    assert (finding.kind, finding.severity, finding.cause) == ("diverging", "critical", False)
    assert finding.since is not None
    assert 150 < finding.since < 190


def test_a_small_rise_is_left_in_peace() -> None:
    losses = np.array(falling(noise=0.01))
    losses[150:] += np.linspace(0, 0.3, 150)
    assert MadeTraining().train(losses).alarms == []


@pytest.mark.parametrize("players", ["one", "two", "one that is seen"])
def test_players_against_each_other_may_rise(players: str) -> None:
    run = MadeTraining().train([0.7 + 1.5 * (1 - np.exp(-step / 50)) + 0.01 * (step % 7) for step in range(300)])
    if players == "two":
        run.manifest["optimizers"] = run.manifest["optimizers"] * 2
    if players == "one that is seen":  # every target of a generator's loss is "real"
        run.objective(300, "binary_cross_entropy_with_logits", value=0.7, majority_share=1.0, target_entropy=0.0)
    assert run.kinds == (["diverging"] if players == "one" else [])


def test_a_policy_loss_around_zero_may_drift() -> None:
    draw = np.random.default_rng(0)
    losses = np.linspace(-0.5, 0.8, 400) + 0.05 * draw.standard_normal(400)
    assert "diverging" not in MadeTraining().train(losses).kinds


def test_a_plateau_is_information() -> None:
    losses = np.concatenate([np.linspace(2.3, 1.0, 60), np.full(240, 1.0)]) + np.array(flat(300, 0.0))
    run = MadeTraining().train(losses, rate=lambda step: 1e-3 if step <= 60 else 1e-4)
    [finding] = find(run.reader)
    assert (finding.kind, finding.severity) == ("plateau", "info")
    assert finding.evidence.first_step is not None
    assert 50 <= finding.evidence.first_step <= 70
    assert "cut to a fifth or less at step 70" in finding.detail


def test_a_loss_that_is_gone_is_no_plateau() -> None:
    assert find(MadeTraining().train(falling(end=0.0, noise=0.001)).reader) == []


def test_a_policy_loss_around_zero_has_no_usual_size() -> None:
    losses = 0.05 * np.random.default_rng(0).standard_normal(300)
    losses[150] = 9.0
    assert MadeTraining().train(losses).alarms == []


def test_a_hard_example_beside_a_loss_that_is_almost_gone() -> None:
    """As one try of a policy that has learned: nothing is lost by it."""
    losses = np.array(falling(end=0.001, noise=1e-5))
    losses[250] = 0.2
    assert MadeTraining().train(losses).alarms == []
    losses[250] = 1.2  # half of all that was gained
    assert MadeTraining().train(losses).kinds == ["bad_batch"]


def below_zero(start: float, best: float, end: float, noise: float = 0.001) -> list[float]:
    course = np.interp(np.arange(300), [0, 40, 200, 299], [start, best, end, end])
    return (course + noise * np.random.default_rng(0).standard_normal(300)).tolist()


@pytest.mark.parametrize(("start", "best"), [(-0.031, -0.036), (-0.036, -0.036), (-0.02, -0.05)])
def test_the_loss_of_a_policy_that_fades_to_zero_from_below(start: float, best: float) -> None:
    assert MadeTraining().train(below_zero(start, best, -0.006)).alarms == []


def test_losses_below_zero_that_do_diverge() -> None:
    """What had fallen far and came back, as a cosine that is lost, and a loss that should fall."""
    assert MadeTraining().train(below_zero(-0.05, -0.8, -0.05)).kinds == ["diverging"]
    known = MadeTraining().train(below_zero(-0.031, -0.036, -0.006))
    assert "diverging" in known.objective(300, "mse_loss", value=-0.01, constant_loss=1.0).kinds


def test_a_critic_whose_loss_fades_has_no_rate_that_is_too_high() -> None:
    """Wasserstein players: clamping the critic's weights moves them by half of their norm at the first step."""
    run = MadeTraining("RMSprop").train(
        below_zero(-0.036, -0.047, -0.004), update=lambda step: 0.5 if step < 20 else 1e-3
    )
    run.manifest["optimizers"] = run.manifest["optimizers"] * 2
    assert run.alarms == []
