"""Batches of one class, close logits, penalties, empty codes, holdouts that do not follow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find
from learnscope.record import Column, Table

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10, "predicted_majority": 0.3}


def classified(losses: list[float], **numbers: Any) -> MadeTraining:
    usual = {**TEN, "objective_accuracy": 0.3, "step_majority": 0.2, "step_targets": 32, **numbers}
    return MadeTraining().train(losses).objective(len(losses), value=losses, **usual)


def test_batches_of_one_class() -> None:
    [finding] = classified(flat(level=3.0, noise=0.5), step_majority=1.0).alarms
    assert (finding.kind, finding.cause, finding.since) == ("sorted_data", True, 10)
    assert "shuffle" in finding.advice


@pytest.mark.parametrize("numbers", [
    {"step_majority": 0.4}, {"step_majority": 1.0, "step_targets": 4}, {"step_majority": 1.0, "majority_share": 0.97},
    {"step_majority": 1.0, "objective_accuracy": 0.97},
])  # fmt: skip
def test_batches_that_are_mixed_small_learned_or_of_a_rare_class(numbers: dict[str, float]) -> None:
    assert "sorted_data" not in classified(falling(), **numbers).kinds


def test_predictions_that_the_loss_does_not_show() -> None:
    [finding] = classified(falling(start=2.3, end=2.22, noise=0.002), objective_accuracy=0.9).alarms
    assert (finding.kind, finding.cause, finding.since) == ("temperature_too_high", True, 1)
    assert classified(falling(start=2.3, end=0.5), objective_accuracy=0.9).alarms == []
    assert "temperature_too_high" not in classified(flat(level=2.3), objective_accuracy=0.12).kinds


def penalised(first: float, last: float, shrinks: bool = True) -> MadeTraining:
    own = flat(level=2.3)
    beside = [first * (last / first) ** (k / 300) for k in range(300)]
    logged = [a + b for a, b in zip(own, beside, strict=True)]
    weight = (lambda step: 10 * 0.01 ** (step / 300)) if shrinks else 10.0
    run = MadeTraining("SGD").train(logged, weight=weight)
    return run.objective(300, value=own, **TEN, objective_accuracy=0.1)


def test_a_penalty_that_takes_the_weights_away() -> None:
    [finding] = penalised(20.0, 0.01).alarms
    assert (finding.kind, finding.cause) == ("weight_decay_too_strong", True)
    assert "penalty in the loss" in finding.title
    assert "weight_decay_too_strong" not in penalised(0.1, 0.01).kinds
    assert "weight_decay_too_strong" not in penalised(20.0, 0.01, shrinks=False).kinds


def rebuilt(spread: float, *, width: int = 64, extra: float = 0.5) -> MadeTraining:
    own = falling(start=0.3, end=0.07, noise=0.001)
    run = MadeTraining().train([value + extra * math.exp(-k / 100) for k, value in enumerate(own)])
    run.objective(300, "mse_loss", value=own, constant_loss=0.14, target_mean=0.3, target_std=0.38, output_std=0.3,
                  output_mean=0.3)  # fmt: skip
    numbers = {"input_mean": 0.3, "input_std": 0.38, "output_spread": spread, "output_width": width, "output_rms": 0.4}
    for step in range(10, 301, 10):
        columns = [Column(name, [value], {"data": "train"}) for name, value in numbers.items()]
        run.write("Inputs", step, [Table("model", ["model"], columns)], notes={"input": "0: float32[1, 8, 8]"})
    return run


def test_an_autoencoder_with_an_empty_code() -> None:
    [finding] = rebuilt(0.03).alarms
    assert (finding.kind, finding.cause) == ("posterior_collapse", True)
    assert "posterior_collapse" not in rebuilt(0.2).kinds
    assert "posterior_collapse" not in rebuilt(0.03, width=3).kinds  # its outputs are not of the size of the inputs
    assert "posterior_collapse" not in rebuilt(0.03, extra=0.0).kinds  # the loss has no other term


def evaluated(*values: float, start: float = 2.3) -> MadeTraining:
    run = MadeTraining().train(falling(start=start))
    for place, value in enumerate(values, 1):
        run.holdout(300 * place // len(values), None, mean=value)
    return run


def test_a_holdout_that_does_not_follow() -> None:
    [finding] = evaluated(2.31, 2.3, 2.31, 2.3, 2.3).alarms
    assert (finding.kind, finding.cause) == ("holdout_differs", True)
    assert "does not follow the training" in finding.title
    assert evaluated(2.3, 1.5, 0.9, 0.5, 0.4).alarms == []
    assert "holdout_differs" not in evaluated(0.4, 0.4, 0.4, 0.4, 0.4).kinds  # it was learned before


def test_an_epsilon_that_makes_the_steps_small() -> None:
    run = MadeTraining("Adam", eps=1.0).train(falling(end=2.2, noise=0.01), gradient=0.5)
    [finding] = run.alarms
    assert (finding.kind, finding.cause) == ("learning_rate_too_low", True)
    assert "ε of 1 makes the steps small" in finding.title
    assert MadeTraining("Adam", eps=1e-8).train(falling(end=2.2, noise=0.01)).alarms == []
    assert MadeTraining("Adam", eps=1.0).train(falling()).alarms == []  # it learns all the same


def players(losses: list[float], *, update: float = 1e-3) -> MadeTraining:
    run = MadeTraining().train(losses, update=update)
    run.manifest["optimizers"] = run.manifest["optimizers"] * 2
    return run


def test_a_loss_of_one_of_two_players_that_blows_up() -> None:
    rising = [0.7 * math.exp(step / 60) for step in range(300)]
    assert players(rising).kinds == ["diverging"]
    assert players([0.7 * math.exp(step / 200) for step in range(300)]).alarms == []  # the other one wins
    wild = [0.7, *[100.0 + step % 7 for step in range(100)], *falling(200, start=90, end=0.3)]
    assert players(wild, update=3.0).kinds == ["learning_rate_too_high"]


def test_a_player_whose_gradient_is_gone() -> None:
    def made(last: float) -> MadeTraining:
        run = players(falling())
        for step in range(10, 301, 10):
            norms = [Column("norm", [0.5, 0.5 * (last / 0.5) ** (step / 300)], {"stage": "stepped"})]
            run.write("GradientFlow_2", step, [Table("group", ["group_0", "group_1"], norms)], phase="before_step")
        return run

    [finding] = made(1e-6).alarms
    assert (finding.kind, finding.scopes) == ("vanishing", ["group_1"])
    assert made(0.05).alarms == []
    alone = made(1e-6)
    alone.manifest["optimizers"] = alone.manifest["optimizers"][:1]
    assert [f.kind for f in find(alone.reader) if f.severity != "info"] == []


def test_betas_that_were_exchanged() -> None:
    rising = [0.5 + 0.02 * step for step in range(300)]
    [finding] = MadeTraining("Adam", betas=[0.999, 0.9]).train(rising).alarms
    assert (finding.kind, finding.cause) == ("momentum_too_high", True)
    assert "momentum_too_high" not in MadeTraining("Adam", betas=[0.9, 0.999]).train(rising).kinds
    assert MadeTraining("Adam", betas=[0.999, 0.9]).train(falling()).alarms == []


def test_a_holdout_that_never_gets_better() -> None:
    def judged(*values: float) -> list[str]:
        run = MadeTraining().train(falling(end=0.05))
        for place, value in enumerate(values, 1):
            run.holdout(300 * place // len(values), None, mean=value)
        return run.kinds

    assert "not_generalising" in judged(2.3, 2.4, 2.5, 2.4, 2.45)
    assert "not_generalising" not in judged(2.3, 1.9, 1.5, 1.4, 1.4)


def test_losses_around_zero_and_idle_biases_are_sound() -> None:
    policy = [0.2 * math.sin(step) + 0.0005 * step for step in range(300)]
    assert MadeTraining().train(policy).alarms == []
    run = MadeTraining().train(falling())
    for step in range(10, 301, 10):
        shares = [Column("visible_share", [1.0, 0.0])]
        run.write("ParameterChange_2", step, [Table("tensor", ["last.weight", "last.bias"], shares)])
    assert run.alarms == []
    assert [f.kind for f in find(run.reader)] == ["not_moving"]


def ordered(within: float, period: int = 50) -> MadeTraining:
    """Losses that jump at each end of the file; cumulated targets of measured batches."""
    losses = [9.0 if step % period == 1 and step > 1 else value for step, value in enumerate(falling(noise=0.01), 1)]
    steps = np.arange(10, 301, 10)
    means = np.interp(steps % period, [0, 10, period], [2.0, -1.5, 2.0]) if period < 300 else steps / 100
    count = np.arange(1, 31)
    level = np.cumsum(means) / count
    spread = np.sqrt(np.cumsum(means**2 + within**2) / count - level**2)
    of = {step: place for place, step in enumerate(steps.tolist())}
    run = MadeTraining().train(losses)
    numbers = {"constant_loss": 1.9, "output_mean": 0.0, "output_std": 1.0}
    numbers |= {"target_mean": lambda step: level[of[step]], "target_std": lambda step: spread[of[step]]}
    return run.objective(300, "mse_loss", value=losses, **numbers)


def test_numbers_in_their_order() -> None:
    [finding] = ordered(0.1).alarms
    assert (finding.kind, finding.cause) == ("sorted_data", True)
    assert {inside.kind for inside in finding.taken_in} <= {"bad_batch", "loss_spike"}
    assert "sorted_data" not in ordered(1.3).kinds  # shuffled
    assert "sorted_data" not in [f.kind for f in find(ordered(0.1, period=1000).reader)]  # numbers that drift


def denoised(divergence: float) -> MadeTraining:
    """Targets without the noise of the inputs, and a divergence that the loop logs."""
    own = falling(start=0.3, end=0.14, noise=0.001)
    run = MadeTraining().train([value + 0.5 * math.exp(-k / 100) for k, value in enumerate(own)])
    run.objective(300, "mse_loss", value=own, constant_loss=0.14, target_mean=0.2, target_std=0.38, output_std=0.3,
                  output_mean=0.2)  # fmt: skip
    numbers = {"input_mean": 0.0, "input_std": 0.6, "output_spread": 0.03, "output_width": 64, "output_rms": 0.4}
    for step in range(1, 301):
        run.model("Loss", step, divergence=divergence)
        if step % 10 == 0:
            columns = [Column(name, [value], {"data": "train"}) for name, value in numbers.items()]
            run.write("Inputs", step, [Table("model", ["model"], columns)], notes={"input": "0: float32[1, 8, 8]"})
    return run


def test_an_empty_code_by_its_divergence() -> None:
    assert "posterior_collapse" in denoised(0.001).kinds
    assert "posterior_collapse" not in denoised(4.0).kinds
