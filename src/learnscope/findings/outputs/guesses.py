"""Models that do no better than guessing on what they are trained on, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learnscope.findings import analysis, findings_of
from learnscope.findings.evidence import evidence_over
from learnscope.findings.gradients.absent import absent
from learnscope.findings.gradients.unread import unread_embeddings
from learnscope.findings.gradients.vanishing import vanishing
from learnscope.findings.outputs.held_out.memory import by_memory_alone
from learnscope.findings.outputs.one_answer import one_answer
from learnscope.findings.outputs.penalty import penalty_of
from learnscope.findings.outputs.posterior import rebuilds_inputs
from learnscope.findings.ruled_out import gradients_arrive, rate_is_right, said, steps_reach
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss, Objective
from learnscope.reading.course.chance import TRIPLETS, Guessing, guessing, last_of, one_question
from learnscope.reading.course.loss_course import Course, loss_course
from learnscope.reading.course.movement import moves_of, optimizers_of, reach_of
from learnscope.reading.course.pace import hardly_begun
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, grid, series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

LONG_ENOUGH = 50
"""Losses below which a model may not have begun to learn."""
LONG = 100
"""Losses below which the labels are not doubted."""
ONE_CLASS = 0.98
"""Share of predictions of one class from which only that is predicted."""
LARGE_CLASS = 0.6
"""Share of the largest class from which guessing it looks like learning."""
KNOWN = 0.7
"""Share of the loss of a constant guess below which the holdout was learned."""
NOT_THE_DATA = (
    "A model that does not get its inputs, or is too small for the task: train it on ten examples alone. If it can "
    "memorise these, the targets do not belong to their inputs; if not, it is the model."
)
EXCHANGED = "The near one and the far one are exchanged: triplet_margin_loss takes anchor, positive, negative."
UNREAD = (
    "Look at the attention mask: in some modules of torch True means that a token is left out, in others that it is "
    "kept. Then at what is taken of the sequence (the mean, the last place), and at anything that is multiplied by 0."
)
CONSTANT = 0.1
"""Standard deviation of outputs, in units of the targets', below which all are the same."""


@analysis(
    place=80,
    check="better than guessing",
    needs=[Loss.loss, (Objective.target_entropy, Objective.constant_loss, Inputs.output_confidence)],
)
def not_learning(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (what is chance needs no cut)
    found, course = guessing(reader), loss_course(reader)
    if found is None or course is None or len(course) < LONG_ENOUGH or not found.at_chance or _against(reader):
        return []
    if _known_on_holdout(reader, found):
        return []
    return [
        Finding(
            kind="not_learning",
            severity="warning",
            title=f"The model does no better on its training batches than {found.chance.what}",
            detail=_sentence(found),
            advice="Look for a cause among the other findings. If there is none: train on ten examples alone; a model "
            "that cannot memorise these is wired wrongly, and one that can has data it cannot learn from.",
            evidence=_evidence(found, course),
            since=int(course.steps[0]),
        )
    ]


def _against(reader: RunReader) -> bool:
    """Two players may keep each other at chance: nothing is wrong then."""
    return len(optimizers_of(reader)) > 1


def _sentence(found: Guessing) -> str:
    sentences = []
    if found.course is not None and found.chance.loss is not None:
        end = found.course.end
        sentences.append(
            f"Its loss was {num(end.value)} a target in {between(end.first, end.last)} (median of "
            f"{count(end.n, 'loss', 'losses')}), and {found.chance.what} gives {num(found.chance.loss)}."
        )
    if found.accuracy is not None and found.chance.accuracy is not None:
        right = found.accuracy
        sentences.append(
            f"Of the training targets {percent(right.value)} were predicted right (mean of "
            f"{count(right.n, 'batch', 'batches')}, ± {percent(2 * right.error)}); the largest class has "
            f"{percent(found.chance.accuracy)}."
        )
    return " ".join(sentences)


def _evidence(found: Guessing, course: Course) -> Evidence:
    ends = int(course.steps[0]), int(course.steps[-1])
    if found.course is not None:
        return evidence_over(ends, found.course.probe, found.course.name, len(found.course), found.course.end.value)
    assert found.accuracy is not None
    return evidence_over(ends, Objective.probe, Objective.objective_accuracy, found.accuracy.n, found.accuracy.value)


@analysis(place=81, check="guessing the largest class", needs=[Objective.predicted_majority, Objective.majority_share])
def majority_guess(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found, course = guessing(reader), loss_course(reader)
    share = _of_one_class(reader, cuts)
    if found is None or found.chance.accuracy is None or found.accuracy is None or share is None:
        return []
    right, largest = found.accuracy, found.chance.accuracy
    several = found.chance.function.startswith("binary") and not one_question(reader)
    if several or largest < LARGE_CLASS or share < ONE_CLASS or abs(right.value - largest) > max(3 * right.error, 0.01):
        return []
    if (course is not None and len(course) < LONG_ENOUGH) or _against(reader):
        return []
    return [
        Finding(
            kind="majority_guess",
            severity="warning",
            title=f"The model predicts one class for everything: {percent(right.value)} right, the share of that class",
            detail=f"{percent(share)} of the predictions of a batch are of one class, in "
            f"{between(right.first, right.last)}. "
            f"{_sentence(found)} An accuracy of {percent(right.value)} is what the largest class alone gives.",
            advice="Do not judge this by accuracy: use the recall of each class. Weight the classes in the loss, or "
            "draw "
            "batches with more of the rare ones, and check that the inputs of the rare class carry anything at all.",
            evidence=evidence_over(
                (right.first, right.last), Objective.probe, Objective.predicted_majority, right.n, share
            ),
            cause=True,
            explains=["not_learning", "shortcut", "not_generalising", "memorised", "labels_unrelated", "plateau"],
            ruled_out=said(rate_is_right(reader), gradients_arrive(reader)),
            since=_since(series(reader, Objective.predicted_majority).finite),
        )
    ]  # fmt: skip


def _of_one_class(reader: RunReader, cuts: Cuts) -> float | None:
    """The share of one class among the predictions of a batch; of batches of a few, among those of all batches, since
    one prediction is always of one class."""
    share, rows = late(series(reader, Objective.predicted_majority), cuts), series(reader, Inputs.rows).finite.values
    if share is None or not len(rows) or float(np.median(rows)) >= cuts.batch_targets:
        return share
    each = np.nan_to_num(grid(reader, Objective.predicted_share, kind="class").values)
    return float(each[-(len(each) // 3) :].mean(axis=0).max()) if len(each) >= 3 else None


def _since(shares: Series) -> int:
    """The first measurement from which on only one class was predicted."""
    other = np.flatnonzero(shares.values < ONE_CLASS)
    return int(shares.steps[min(int(other[-1]) + 1, len(shares) - 1)]) if len(other) else int(shares.steps[0])


def late(found: Series, cuts: Cuts) -> float | None:
    """The mean of the last third of the measurements; None if these are too few."""
    values = found.finite.values
    n = len(values) // 3
    return float(values[-n:].mean()) if n >= cuts.measurements else None


@analysis(
    place=82,
    check="inputs say something about targets",
    needs=[(Objective.objective_mean, Inputs.output_confidence), Loss.loss],
)
def labels_unrelated(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Steps that could have lowered the loss, and a loss that stays where a constant guess is."""
    found, course = guessing(reader), loss_course(reader)
    if found is None or course is None or len(course) < LONG or _against(reader):
        return []
    memory = "" if found.at_chance else by_memory_alone(reader, found, cuts)
    if not found.at_chance and not memory:
        return []
    if steps_reach(reader, course) is not True or (found.starts_high or 0) >= 3 or _known_on_holdout(reader, found):
        return []
    moves = moves_of(reader)
    assert moves is not None  # steps could not have been judged
    unread = unread_embeddings(reader, cuts)
    lost = [
        finding
        for other in (vanishing, absent, majority_guess, one_answer)
        for finding in findings_of(other, reader, cuts)
    ]
    lost = [finding for finding in lost if finding.severity != "info" and list(finding.scopes) != list(unread)]
    if float(np.median(moves.per_step)) >= cuts.large_step or lost:
        return []
    if _overshoots(reader, course, cuts) or penalty_of(reader, cuts) is not None or rebuilds_inputs(reader):
        return []
    if hardly_begun(reader, cuts):  # too little was tried to blame the data
        return []
    empty = _empty(reader) or _unread(unread, cuts)
    what = "outputs" if found.chance.numbers else "predictions"
    return [
        Finding(
            kind="labels_unrelated",
            severity="warning",
            title="The tokens are not read: their embedding gets no gradient, and the model is at chance" if unread
            else "All inputs are the same: there is nothing to tell targets apart by" if empty
            else "The inputs seem to say nothing about the targets: the model moves and stays at chance",
            detail=f"{_sentence(found)} {memory}{empty}The weights were trained, and what came of it are {what} that "
            "are best if nothing is known of the input.",
            advice=UNREAD if unread
            else "Take a batch as the model gets it and look at inputs and targets side by side: shuffled apart, "
            "joined by the wrong key, off by one, of shapes that broadcast (N against N × 1), or emptied on the way.",
            evidence=_evidence(found, course),
            cause=True,
            explains=["not_learning", "plateau", "memorised", "not_generalising", "overfitting", "worsening",
                      *(["zero_gradients", "not_moving"] if unread else [])],
            ruled_out=said(rate_is_right(reader), gradients_arrive(reader)),
            alternatives=[] if empty else [NOT_THE_DATA, *([EXCHANGED] if found.chance.function == TRIPLETS else [])],
            since=int(course.steps[0]),
        )
    ]  # fmt: skip


def _unread(names: Sequence[str], cuts: Cuts) -> str:
    if not names:
        return ""
    return (
        f"Every entry of the gradient of {listed(names, cuts.names_listed)} is exactly 0, while what comes after is "
        "trained: of the tokens only padding is read, or none of them reaches the outputs. "
    )


def _known_on_holdout(reader: RunReader, found: Guessing) -> bool:
    """Whether the holdout loss is far below chance: what was learned shows there, if not in a noisy training loss."""
    held = held_out_loss(reader)
    values = held.series.finite.values
    chance = found.chance.loss
    return held.stand_in is None and len(values) > 0 and chance is not None and float(values[-1]) < KNOWN * chance


def _overshoots(reader: RunReader, course: Course, cuts: Cuts) -> bool:
    """Whether a step went past where the gradient still holds: what is then at chance may have been broken by it."""
    reach = reach_of(reader)
    if reach is None:
        return False
    losses = np.interp(reach.steps, course.steps, np.maximum(np.abs(course.values), 1e-300))
    return bool((reach.change / losses >= cuts.overshoot).any())


def _empty(reader: RunReader) -> str:
    """A sentence if the inputs have no spread at all."""
    spread = series(reader, Inputs.input_std, data="train").finite.values
    tokens = series(reader, Inputs.token_distinct, data="train").finite.values
    if len(spread) and not spread.any():
        return f"Every number of the inputs was the same in {count(len(spread), 'measurement')}. "
    if len(tokens) and tokens.max() <= 1:
        return f"There was one and the same token everywhere in {count(len(tokens), 'measurement')}. "
    return ""


@analysis(place=83, check="collapse of outputs", needs=[Objective.output_std, Objective.target_std])
def collapse(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Outputs that agree with targets because both are the same whatever the input."""
    spread, level = (series(reader, quantity).finite for quantity in (Objective.output_std, Objective.output_mean))
    targets, constant = last_of(reader, Objective.target_std), last_of(reader, Objective.constant_loss)
    end, mean = late(spread, cuts), late(series(reader, Objective.objective_mean), cuts)
    if not targets or not constant or end is None or mean is None or mean > CONSTANT**2 * constant:
        return []
    n = len(level) // 3
    wanders = float(level.values[-n:].std())
    if end > CONSTANT * targets or wanders > CONSTANT * targets:
        return []
    steps = int(spread.steps[-n]), int(spread.steps[-1])
    return [
        Finding(
            kind="embedding_collapse",
            severity="critical",
            title="The outputs have collapsed: they are the same for all inputs, and so are their targets",
            detail=f"The standard deviation of the outputs went from {num(float(spread.values[0]))} to {num(end)} "
            "while the "
            f"loss fell to {num(mean)} ({between(*steps)}, {count(n, 'measurement')}). With targets that were given, "
            "outputs without spread would have a loss of their variance: the targets have shrunk with the outputs, as "
            "when both come from the model.",
            advice="Hold different inputs apart: negatives, a variance or decorrelation term, or stop the gradient "
            "on one "
            "side with a slowly moving copy of the model.",
            evidence=evidence_over(steps, spread.probe, Objective.output_std, n, end),
            cause=True,
            explains=["not_moving", "vanishing", "zero_gradients", "plateau", "not_learning"],
            since=int(spread.steps[int(np.argmax(spread.values <= CONSTANT * targets))]),
        )
    ]  # fmt: skip
