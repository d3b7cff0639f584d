"""Steps so small that a run is still on its way, and what must not be said of it."""

from __future__ import annotations

import numpy as np
import pytest

from findings.made_training import MadeTraining, flat

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10, "predicted_majority": 0.3}


def slowly(start: float, end: float, *, update: float, gradient: float = 10.0, noise: float = 0.02) -> MadeTraining:
    """A loss in a straight line; ‖W‖ is 10, so that Σ‖Δ‖‖g‖ over 300 steps is 300 · update · 10 · gradient."""
    losses = (np.linspace(start, end, 300) + noise * np.random.default_rng(0).standard_normal(300)).tolist()
    run = MadeTraining("SGD").train(losses, rate=1e-4, update=update, gradient=gradient)
    return run.objective(300, value=losses, objective_accuracy=0.11, **TEN)


def test_a_loss_that_falls_steadily_and_is_no_better_than_guessing() -> None:
    [finding] = slowly(4.2, 3.0, update=7e-5).alarms  # Σ‖Δ‖‖g‖ is 2.1, and the loss has lost 1.2
    assert (finding.kind, finding.cause) == ("learning_rate_too_low", True)
    assert finding.title.endswith("weights moved by 2.1 % in all")
    assert "could change it by 2.1 (Σ‖Δ‖‖g‖), and it has lost 1.08" in finding.detail  # to the median of the last fifth
    assert any("Targets" in sentence for sentence in finding.ruled_out)


@pytest.mark.parametrize(("update", "gradient"), [(7e-4, 1.0), (7e-5, 100.0)])
def test_weights_that_have_moved_or_steps_that_could_do_more(update: float, gradient: float) -> None:
    """By a fifth of their size, or by what could have changed the loss by 20 times as much: it is not the rate."""
    assert "learning_rate_too_low" not in slowly(4.2, 3.0, update=update, gradient=gradient).kinds


def test_steps_of_which_nothing_can_be_seen() -> None:
    """Σ‖Δ‖‖g‖ is 0.06, which is less than the noise from batch to batch, and 2.5 % of the loss."""
    losses = flat(level=2.35, noise=0.05)
    run = MadeTraining("SGD").train(losses, rate=1e-4, update=1e-5, gradient=2.0)
    [finding] = run.objective(300, value=losses, objective_accuracy=0.11, **TEN).alarms
    assert (finding.kind, finding.cause) == ("learning_rate_too_low", True)


def test_a_loss_that_is_better_than_guessing_is_left_alone() -> None:
    assert slowly(2.3, 1.2, update=7e-5).kinds == []


def test_labels_are_not_blamed_where_hardly_anything_was_tried() -> None:
    """The same loss at chance, with weights that moved by 2 % and lost what the gradient says, and by 60 %."""
    losses = [*np.linspace(2.6, 2.3, 60), *flat(240, level=2.3)]

    def kinds(update: float, gradient: float) -> list[str]:
        run = MadeTraining("SGD").train(losses, rate=1e-4, update=update, gradient=gradient)
        return run.objective(300, value=losses, objective_accuracy=0.11, **TEN).kinds

    assert "labels_unrelated" not in kinds(7e-5, 5.0)
    assert kinds(2e-3, 1.0) == ["labels_unrelated"]


def test_steps_that_brought_weights_somewhat_further_and_could_change_even_less() -> None:
    """Weights moved by 1.8 %, and Σ‖Δ‖‖g‖ is 0.09, 4 % of the loss."""
    losses = flat(level=2.3, noise=0.02)
    run = MadeTraining("Adam").train(losses, rate=2e-5, update=6e-5, gradient=0.5)
    [finding] = run.objective(300, value=losses, objective_accuracy=0.11, **TEN).alarms
    assert (finding.kind, finding.cause) == ("learning_rate_too_low", True)


def test_outputs_that_are_the_same_for_all_are_not_the_rates_doing() -> None:
    losses = flat(level=2.3, noise=0.02)
    run = MadeTraining("Adam").train(losses, rate=2e-5, update=6e-5, gradient=0.5)
    run.objective(300, value=losses, objective_accuracy=0.11, **TEN)
    run.inputs(300, output_spread=1e-7, output_rms=0.5, input_std=1.0)
    assert run.kinds == ["embedding_collapse"]
