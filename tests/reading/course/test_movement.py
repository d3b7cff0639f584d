"""How far steps move the weights and what that can do to the loss, against a training computed here in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import learnscope as ls
from findings.made_training import MadeTraining, falling
from learnscope.reading.course.chance import guessing, logged_over_mean
from learnscope.reading.course.movement import adaptive, gradient_norms, highest_rates, moves_of, options_of, reach_of


def test_moves_and_reach_of_a_real_training() -> None:
    """On a quadratic loss: ‖Δ‖, ‖W‖ and ‖g‖ of every step are computed beside it."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1, bias=False, dtype=torch.float64)
    x, y = torch.randn(40, 5, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    moved, weights, gradients = [], [], []
    with ls.watch(model, optimizer, probes=[ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.Loss()]) as w:
        for _ in range(30):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            before = model.weight.detach().clone()
            gradients.append(float(model.weight.grad.norm()))
            weights.append(float(before.norm()))
            optimizer.step()
            moved.append(float((model.weight.detach() - before).norm()))
            w.log(loss=loss)
    moves, reach = moves_of(w.run), reach_of(w.run)
    assert moves is not None
    assert reach is not None
    np.testing.assert_allclose(moves.norm, moved, rtol=1e-6)
    np.testing.assert_allclose(moves.weights, weights, rtol=1e-6)
    np.testing.assert_allclose(moves.per_step, np.array(moved) / weights, rtol=1e-6)
    np.testing.assert_allclose(reach.change, np.array(moved) * gradients, rtol=1e-6)
    np.testing.assert_allclose(reach.elasticity, np.array(weights) * gradients, rtol=1e-6)
    assert reach.total == pytest.approx(float(np.dot(moved, gradients)), rel=1e-6)
    assert moves.until(10).steps[-1] == 10


def test_changes_over_several_steps_are_shared_among_them() -> None:
    run = MadeTraining().train(falling(), update=1e-3, gradient=0.5, weight=10.0)
    moves, reach = moves_of(run.reader), reach_of(run.reader)
    assert moves is not None
    assert reach is not None
    np.testing.assert_allclose(moves.lengths, 10)
    np.testing.assert_allclose(moves.per_step, 1e-3)
    np.testing.assert_allclose(moves.weights, 10.0)
    assert reach.total == pytest.approx(300 * 1e-3 * 10 * 0.5)


def test_gradients_before_and_after_a_clip() -> None:
    run = MadeTraining().train(falling(), gradient=2.0, clip=0.5).reader
    np.testing.assert_allclose(gradient_norms(run).values, 0.5)
    np.testing.assert_allclose(gradient_norms(run, clipped=False).values, 2.0)


def test_what_is_not_recorded_is_not_there() -> None:
    empty = MadeTraining().reader
    assert moves_of(empty) is None
    assert reach_of(empty) is None
    assert len(highest_rates(empty)) == len(gradient_norms(empty)) == 0
    assert guessing(empty) is None


@pytest.mark.parametrize(("name", "is_adaptive"), [("AdamW", True), ("Lion", True), ("SGD", False), ("RMSprop", True)])
def test_optimizers_that_divide_by_the_gradient(name: str, is_adaptive: bool) -> None:
    run = MadeTraining(name, eps=1e-8).reader
    assert adaptive(run) is is_adaptive
    assert options_of(run, "eps") == [1e-8]


@pytest.mark.parametrize("times", [1.0, 32.0, -1.0])
def test_the_logged_loss_in_units_of_one_target(times: float) -> None:
    losses = falling()
    run = MadeTraining().train([times * loss for loss in losses]).objective(300, value=losses)
    assert logged_over_mean(run.reader) == pytest.approx(times)


def test_another_loss_than_the_function_returned() -> None:
    losses = falling()
    noise = np.random.default_rng(0).random(300)
    run = MadeTraining().train(np.array(losses) + noise).objective(300, value=losses)
    assert logged_over_mean(run.reader) is None


def test_guessing_is_the_entropy_of_the_shares() -> None:
    shares = np.array([0.7, 0.2, 0.1])
    entropy = float(-(shares * np.log(shares)).sum())
    losses = falling(end=0.1)
    run = MadeTraining().train(losses)
    run.objective(300, value=losses, target_entropy=entropy, majority_share=0.7, classes=3, objective_accuracy=0.97)
    found = guessing(run.reader)
    assert found is not None
    assert found.chance.loss == entropy
    assert found.better is True
    assert not found.at_chance
    # a model that knows nothing gives all classes alike
    assert found.starts_high == pytest.approx(losses[0] / np.log(3))
