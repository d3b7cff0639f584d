"""Softmax over the wrong dimension, and a sigmoid of a sigmoid: outputs that cannot say what they should."""

from __future__ import annotations

from learnscope.findings import analysis
from learnscope.findings.outputs.objective_checks import finding_of, steady
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import main_function
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

HELD_BACK = ("not_learning", "plateau", "learning_rate_too_low", "vanishing", "labels_unrelated", "majority_guess")


@analysis(place=20, check="softmax over the classes", needs=[Objective.batch_softmax_columns], at_least="measurements")
def over_the_batch(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = series(reader, Objective.batch_softmax_columns).finite
    share = steady(found, cuts)
    if share is None or share < cuts.surely:
        return []
    function = main_function(reader) or "the loss function"
    return [
        finding_of(
            found, Objective.batch_softmax_columns, share, "double_softmax",
            "Softmax is taken over the batch or over the places of a sequence, not over the classes",
            f"{percent(share)} of the columns given to {function} add up to 1 over the examples of the batch (they or "
            "their exponentials), or over the places of each sequence, so that these compete with each other, and "
            "classes do not",
            "Take softmax or log_softmax over the classes, dim=1 (dim=-1 of sequences), or give the logits to "
            "cross_entropy.",
            [*HELD_BACK, "loss_maximised", "overfitting", "worsening", "wrong_outputs", "not_generalising"],
        )
    ]  # fmt: skip


@analysis(place=20, check="one sigmoid", needs=[Objective.twice_squashed], at_least="measurements")
def sigmoid_twice(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """From the first measurement on: outputs of one sigmoid begin on both sides of 1/2."""
    found = series(reader, Objective.twice_squashed).finite
    if len(found) < 2 * cuts.measurements or float(found.values.min()) < cuts.surely:
        return []
    return [
        finding_of(
            found, Objective.twice_squashed, float(found.values.min()), "double_softmax",
            "All probabilities are between 0.5 and 0.731: sigmoid seems to be applied twice",
            "The sigmoid of a number between 0 and 1 lies between 0.5 and 0.731, and so did at least "
            f"{percent(float(found.values.min()))} of the probabilities given to {main_function(reader)} at every "
            "looked-at step: none of them can say no",
            "Apply one sigmoid: take that of the model or that of the loop away, or use "
            "binary_cross_entropy_with_logits on the outputs before it.",
            [*HELD_BACK, "overfitting", "worsening"],
            alternatives=["Outputs that were cut off below 0 before the sigmoid, as by a ReLU, and stay small."],
        )
    ]  # fmt: skip
