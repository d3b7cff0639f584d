"""Models that do no better than guessing, and why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find
from learnscope.record import Column, Table

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10}


def chance(losses: list[float], **numbers: Any) -> MadeTraining:
    usual = {**TEN, "objective_accuracy": 0.1, "predicted_majority": 0.4, **numbers}
    return MadeTraining().train(losses).objective(len(losses), value=losses, **usual)


def test_labels_that_belong_to_other_inputs() -> None:
    [finding] = chance(flat(level=2.3)).alarms
    assert (finding.kind, finding.cause, finding.since) == ("labels_unrelated", True, 1)
    assert [inside.kind for inside in finding.taken_in] == ["not_learning"]
    assert "guessing by the shares of the classes gives 2.3" in finding.detail
    assert "the largest class has 11 %" in finding.detail
    trained, arrive = finding.ruled_out
    assert trained.startswith("The learning rate is 0.001 and the weights move by 0.1 % a step (median of 30 measure")
    assert arrive == "Gradients arrive: ‖g‖ is 0.5 (median of 30 measurements)."
    assert "ten examples" in finding.alternatives[0]


def test_a_model_that_learns() -> None:
    accuracy = lambda step: 0.1 + 0.8 * step / 300  # noqa: E731
    assert find(chance(falling(), objective_accuracy=accuracy).reader) == []


def test_a_loss_that_is_on_its_way() -> None:
    """As of a language model that has not yet passed what the frequencies of tokens give."""
    losses = (np.linspace(4.0, 2.4, 300) + 0.02 * np.random.default_rng(0).standard_normal(300)).tolist()
    assert chance(losses).alarms == []


def test_a_weighted_loss_is_not_held_against_the_shares() -> None:
    losses = falling(end=0.1)
    run = chance(losses, majority_share=0.99, target_entropy=0.056, objective_accuracy=0.95, predicted_majority=0.9)
    assert run.alarms == []


def test_a_short_run_is_left_in_peace() -> None:
    assert chance(flat(40)).alarms == []


def test_two_players_may_stay_at_chance() -> None:
    run = chance(flat(level=math.log(2)), target_entropy=math.log(2), majority_share=0.5, classes=1)
    run.manifest["optimizers"] = run.manifest["optimizers"] * 2
    assert run.alarms == []


def test_regression_that_is_no_better_than_a_constant() -> None:
    losses = flat(level=1.0)
    run = MadeTraining().train(losses)
    run.objective(300, "mse_loss", value=losses, constant_loss=1.0, target_std=1.0, target_mean=0.0, output_std=0.05,
                  output_mean=lambda step: 0.2 * math.sin(step))  # fmt: skip
    [finding] = run.alarms
    assert finding.kind == "labels_unrelated"
    assert "the best constant gives 1" in finding.detail


def test_inputs_that_are_all_the_same() -> None:
    [finding] = chance(flat()).inputs(300, input_std=0.0, input_max=0.0).alarms
    assert finding.title.startswith("All inputs are the same")
    assert finding.alternatives == []


def test_vanishing_gradients_are_not_the_labels_fault() -> None:
    run = MadeTraining().train(flat(), gradient=0.0)
    run.objective(300, value=flat(), **TEN, objective_accuracy=0.1)
    assert "labels_unrelated" not in run.kinds


def test_the_largest_class_alone() -> None:
    losses = flat(level=0.056, noise=0.01)
    run = chance(losses, majority_share=0.99, target_entropy=0.056, objective_accuracy=0.99, predicted_majority=1.0,
                 classes=2, classes_seen=2)  # fmt: skip
    [finding] = run.alarms
    assert (finding.kind, finding.cause) == ("majority_guess", True)
    assert "99 % right, the share of that class" in finding.title
    assert "recall of each class" in finding.advice


def test_a_large_class_that_is_not_all() -> None:
    losses = falling(end=0.01, start=0.3, noise=0.003)
    run = chance(losses, majority_share=0.9, target_entropy=0.33, objective_accuracy=0.995, predicted_majority=0.9)
    assert run.alarms == []


def test_collapsed_outputs() -> None:
    shrinking = [max(math.exp(-step / 20), 1e-3) for step in range(300)]
    losses = [spread**2 + 1e-5 * (step % 3) for step, spread in enumerate(shrinking)]
    run = MadeTraining().train(losses)
    run.objective(300, "mse_loss", value=losses, constant_loss=0.2, target_std=0.45, target_mean=0.0,
                  output_std=shrinking, output_mean=0.01)  # fmt: skip
    [finding] = run.alarms
    assert (finding.kind, finding.severity, finding.cause) == ("embedding_collapse", "critical", True)
    assert finding.since is not None
    assert 60 <= finding.since <= 80


@pytest.mark.parametrize("batch", ["many", "one"])
def test_a_regression_that_fits(batch: str) -> None:
    """With batches of one example the outputs of a step have no spread either."""
    losses = falling(end=1e-4, start=1.0, noise=1e-5)
    run = MadeTraining().train(losses)
    spread = 0.99 if batch == "many" else 0.0
    run.objective(300, "mse_loss", value=losses, constant_loss=1.0, target_std=1.0, target_mean=0.0,
                  output_std=spread, output_mean=lambda step: math.sin(step * 7.3))  # fmt: skip
    assert run.alarms == []


def test_double_softmax() -> None:
    losses = [*np.linspace(2.3, 1.5, 100), *flat(200, level=1.5)]
    run = chance(losses, probability_rows=1.0, objective_accuracy=0.9)
    [finding] = run.alarms
    assert (finding.kind, finding.cause, finding.since) == ("double_softmax", True, 10)
    assert "softmax is applied twice" in finding.title
    assert chance(falling(), probability_rows=0.2, objective_accuracy=0.9).alarms == []


def test_probabilities_for_nll_loss() -> None:
    losses = [-0.1 - 0.8 * step / 300 for step in range(300)]
    run = MadeTraining().train(losses).objective(300, "nll_loss", value=losses, logprob_rows=0.0, **TEN)
    assert "double_softmax" in run.kinds
    fine = MadeTraining().train(falling()).objective(300, "nll_loss", value=falling(), logprob_rows=1.0, **TEN)
    assert fine.alarms == []


def test_targets_out_of_range() -> None:
    run = chance(falling(), targets_out_of_range=0.4, objective_accuracy=0.9)
    assert run.kinds == ["targets_out_of_range"]
    assert chance(falling(), targets_out_of_range=0.0, objective_accuracy=0.9).alarms == []


def test_targets_out_of_reach_of_a_sigmoid() -> None:
    losses = flat(level=28_000.0, noise=100.0)
    numbers = {"target_mean": 150.0, "target_std": 77.0, "output_mean": 0.999, "output_std": 0.001}
    run = MadeTraining().train(losses).objective(300, "mse_loss", value=losses, constant_loss=5900.0, **numbers)
    [finding] = run.alarms
    assert finding.kind == "targets_out_of_range"
    assert "outputs stay at 1, targets are around 150" in finding.title


@pytest.mark.parametrize("tokens", [False, True])
def test_a_class_that_is_ignored(tokens: bool) -> None:
    run = chance(falling(), ignored_class_share=0.1, objective_accuracy=0.9)
    if tokens:  # padding has a number in the vocabulary
        for step in range(10, 301, 10):
            column = Column("targets_equal_inputs", [1.0], {"shift": 1})
            run.write("Objective_2", step, [Table("model", ["model"], [column])])
    assert run.kinds == ([] if tokens else ["ignored_class"])


def test_a_class_that_never_comes_up() -> None:
    run = chance(falling(), classes_seen=9, objective_accuracy=0.9)
    [finding] = find(run.reader)
    assert (finding.kind, finding.severity) == ("class_never_seen", "info")  # nothing is known to want it
    assert "1 class of 10 never came up" in finding.title
    for step in (10, 300):
        shares = [Column("target_share", [1 / 9] * 9)]
        run.write("Objective", step, [Table("class", [str(place) for place in range(9)], shares)])
    for largest, severity in ((8, "info"), (9, "warning")):
        labels = {"labels": np.arange(largest + 1), "losses": np.full(largest + 1, 0.5, np.float32)}
        held = [Table("model", ["model"], [Column("holdout_loss", [0.5])])]
        run.write("Holdout", 10 * largest, held, arrays=labels)
        [finding] = find(run.reader)
        assert (finding.kind, finding.severity) == ("class_never_seen", severity)
    assert "The holdout has 9 among its labels" in finding.detail
    assert chance(falling(), classes_seen=lambda step: min(step // 25, 10), objective_accuracy=0.9).alarms == []
    assert chance(falling(), classes=50_000, classes_seen=900, objective_accuracy=0.9).alarms == []


@pytest.mark.parametrize(
    ("shares", "kind"),
    [({0: 1.0, 1: 0.05}, "copies_input"), ({2: 1.0, 1: 0.1}, "labels_shifted"), ({1: 1.0, 2: 0.1}, None),
     ({0: 1.0, 1: 1.0, 2: 1.0}, None), ({0: 0.85, 1: 0.1}, None)],
)  # fmt: skip
def test_targets_of_a_language_model(shares: dict[int, float], kind: str | None) -> None:
    run = MadeTraining().train(falling())
    for step in range(10, 301, 10):
        columns = [Column("targets_equal_inputs", [share], {"shift": shift}) for shift, share in shares.items()]
        run.write("Objective", step, [Table("model", ["model"], columns)])
    assert run.kinds == ([kind] if kind else [])


def test_padding_in_the_loss() -> None:
    assert chance(falling(), padding_share=0.4, objective_accuracy=0.9).kinds == ["padding_in_loss"]
    assert chance(falling(), padding_share=0.01, objective_accuracy=0.9).alarms == []


def test_outputs_without_a_gradient() -> None:
    assert chance(falling(), untouched_outputs=0.5, objective_accuracy=0.9).kinds == ["unreached_outputs"]
    late = chance(falling(), untouched_outputs=lambda step: 0.1 * (step > 200), objective_accuracy=0.9)
    assert late.alarms == []
    by_example = chance(falling(), untouched_outputs=lambda step: 0.3 + 0.02 * (step % 7), objective_accuracy=0.9)
    assert by_example.alarms == []  # as in detection: now these cells have a target, and now those


def test_a_holdout_that_is_learned_speaks_against_unrelated_labels() -> None:
    """A training loss that a few huge targets make look like chance."""
    for held, kinds in ((2.3, ["labels_unrelated"]), (0.5, [])):
        run = chance(flat(level=2.3))
        for step in range(10, 301, 10):
            run.holdout(step, None, mean=held + (2.3 - held) * np.exp(-step / 50))
        assert [kind for kind in run.kinds if kind == "labels_unrelated"] == kinds


@pytest.mark.parametrize(
    ("held", "accuracy", "n", "kinds"),
    [
        (2.35, 0.1, 400, ["labels_unrelated"]),
        (1.9, 0.1, 400, []),  # the holdout loss got better
        (2.35, 0.2, 400, []),  # its accuracy did
        (2.35, 0.1, 20, []),  # too few to tell
    ],
)
def test_training_that_is_better_than_guessing_by_memory_alone(
    held: float, accuracy: float, n: int, kinds: list[str]
) -> None:
    run = chance(flat(level=2.29), objective_accuracy=0.3)
    for step in range(10, 301, 50):
        run.holdout(step, None, mean=held)
        run.model("Holdout_2", step, holdout_accuracy=accuracy, holdout_examples=n)
    assert run.kinds == kinds
    if kinds:
        assert "what training is better by is memory" in run.alarms[0].detail


def test_words_that_are_never_a_target() -> None:
    """Where the next token is predicted, some words do not occur; of texts in a few classes, that is a fault."""
    run = chance(falling(), classes_seen=9, objective_accuracy=0.9)
    assert find(run.inputs(300, token_max=8, token_distinct=9).reader) == []
    run = chance(falling(), classes_seen=9, objective_accuracy=0.9)
    [finding] = find(run.inputs(300, token_max=600, token_distinct=400).reader)
    assert finding.kind == "class_never_seen"


def weighted(losses: list[float]) -> MadeTraining:
    """Of a loss that weighs rare targets it is not known what a guess would reach."""
    numbers = {"target_entropy": 0.12, "classes": 2, "classes_seen": 2, "predicted_majority": 0.97}
    accuracy = {"majority_share": 0.973, "objective_accuracy": 0.975, "constant_loss": math.nan}
    run = MadeTraining().train(losses)
    return run.objective(len(losses), "binary_cross_entropy_with_logits", value=losses, **numbers, **accuracy)


def test_a_weighted_loss_that_fell_was_learned_whatever_the_accuracy() -> None:
    assert weighted(falling(start=1.0, end=0.06)).alarms == []
    assert weighted(flat(level=1.0)).kinds == ["labels_unrelated"]


def one_at_a_time(said: list[float]) -> MadeTraining:
    losses = [loss * (1 + step % 3) for step, loss in enumerate(flat(level=0.4, noise=0.05), 1)]
    run = MadeTraining().train(losses).inputs(300, rows=1.0, input_std=1.0)
    for step in range(10, 301, 10):
        numbers = {"majority_share": 0.62, "target_entropy": 0.666, "classes": 2.0, "predicted_majority": 1.0}
        columns = [Column("objective_mean", [losses[step - 1]], {"function": "cross_entropy"})]
        columns += [Column(name, [value]) for name, value in numbers.items()]
        columns.append(Column("objective_accuracy", [float(step % 50 != 0 or step % 100 == 0)]))
        share = said[step // 10 % len(said)]
        shares = Table("class", ["0", "1"], [Column("predicted_share", [share, 1 - share])])
        run.write("Objective", step, [Table("model", ["model"], columns), shares], notes={"of": "cross_entropy of 2"})
    return run


def test_one_prediction_at_a_time_is_always_of_one_class() -> None:
    assert "majority_guess" not in one_at_a_time([0.0, 1.0]).kinds


def test_a_loss_on_its_way_down_to_chance_is_no_memory() -> None:
    """Far above what guessing reaches, as of a model that was trained on something else, and better by accuracy."""
    seen = lambda step: 0.2 * (step >= 60)  # noqa: E731
    above = chance((np.linspace(4.6, 4.0, 300)).tolist(), objective_accuracy=0.2).inputs(300, seen_share=seen)
    assert "labels_unrelated" not in above.kinds
    at_chance = chance(flat(level=2.25), objective_accuracy=lambda step: 0.2 + 0.001 * (step % 20))
    assert "labels_unrelated" in at_chance.inputs(300, seen_share=seen).kinds
