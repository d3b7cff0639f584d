"""Models that give one and the same answer: no to every question, or a class that is not the largest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import gradients_arrive, rate_is_right, said
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import Guessing, guessing, last_of, main_function, one_question
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

LONG_ENOUGH = 50
"""Losses below which a model may not have begun to learn."""
ALWAYS = 0.98
"""Share of the predictions that are of one class, from which only that is predicted."""
RARE = 0.005, 0.2
"""Shares of yes among the targets of several questions, between which never saying it is a fault and no knowledge."""
RARE_PIXELS = 0.05
"""The same where one question is asked at every place, as of a mask: of more, their rarity is not what hides them."""
NOT_LEARNED = 0.75
"""Share of the loss of a constant guess above which hardly anything was learned."""
BELOW = 0.1
"""Accuracy below that of the largest class, from which it is another one that is predicted."""
EXPLAINED = ("not_learning", "shortcut", "not_generalising", "memorised", "labels_unrelated", "plateau", "vanishing")


@analysis(place=81, check="more than one answer", needs=[Objective.predicted_majority, Objective.majority_share])
def one_answer(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found, course = guessing(reader), loss_course(reader)
    shares = grid(reader, Objective.predicted_share, kind="class")
    n = len(shares.steps) // 3
    if found is None or course is None or len(course) < LONG_ENOUGH or n < cuts.measurements:
        return []
    if len(optimizers_of(reader)) > 1:  # players may keep each other there
        return []
    if found.chance.function.startswith("binary") and not one_question(reader):
        return never_yes(reader, found, shares, n)
    return _another_class(reader, found, shares, n)


def never_yes(reader: RunReader, found: Guessing, shares: Grid, n: int) -> list[Finding]:
    """Several yes/no questions, to all of which the answer is no, though some are yes.

    Something was learned: of a model that is at chance others say why, and that it says no is only what follows.
    """
    said_yes = _yes(shares)
    yes, chance, course = float(said_yes[-n:].sum()), found.chance, found.course
    no = last_of(reader, Objective.majority_share)
    if (
        yes > 0
        or not found.better
        or no is None
        or course is None
        or chance.loss is None
        or not RARE[0] < 1 - no < RARE[1]
    ):
        return []
    if course.end.value < NOT_LEARNED * chance.loss or (_of_one_question(shares) and 1 - no > RARE_PIXELS):
        return []
    steps = int(shares.steps[-n]), int(shares.steps[-1])
    return [
        Finding(
            kind="majority_guess",
            severity="warning",
            title=f"The answer is no to every question, and {percent(no)} right for it",
            detail=f"{_none_of(shares)} said yes for any example of the last "
            f"{count(n, 'measurement')}, {between(*steps)}, while {percent(1 - no)} of the targets are yes. The loss "
            "is "
            f"{num(course.end.value)}, and constant guesses would give {num(chance.loss)}: an accuracy of "
            f"{percent(no)} "
            "is what saying no alone gives.",
            advice="Judge by precision and recall of each label, not by accuracy. Weight the yes (pos_weight), draw "
            "more examples that have one, or lower the cut of 1/2, and train longer: the loss is hardly below that of "
            "a constant.",
            evidence=evidence_over(steps, shares.probe, Objective.predicted_share, n, 0.0),
            cause=True,
            explains=EXPLAINED,
            ruled_out=said(rate_is_right(reader), gradients_arrive(reader)),
            since=_since(shares, said_yes == 0),
        )
    ]


def _of_one_question(shares: Grid) -> bool:
    """Whether it is the same question everywhere, as for each pixel: no and yes are its two classes then."""
    return list(shares.scopes) == ["0", "1"]


def _yes(shares: Grid) -> NDArray[np.float64]:
    values = np.nan_to_num(shares.values)
    return values[:, 1] if _of_one_question(shares) else values.sum(axis=1)


def _none_of(shares: Grid) -> str:
    return "No output" if _of_one_question(shares) else f"None of the {len(shares.scopes)} outputs"


def _another_class(reader: RunReader, found: Guessing, shares: Grid, n: int) -> list[Finding]:
    """One class for everything, and not the one that is most of the targets."""
    late = np.nan_to_num(shares.values[-n:]).mean(axis=0)
    top, largest = int(late.argmax()), found.chance.accuracy
    targets = grid(reader, Objective.target_share, kind="class")
    if found.accuracy is None or largest is None or late[top] < ALWAYS or not targets:
        return []
    own = (
        float(np.nan_to_num(targets.of(shares.scopes[top]).values[-1])) if shares.scopes[top] in targets.scopes else 0.0
    )
    if own > largest - BELOW or abs(found.accuracy.value - own) > max(3 * found.accuracy.error, 0.02):
        return []
    steps, name = (int(shares.steps[-n]), int(shares.steps[-1])), shares.scopes[top]
    return [
        Finding(
            kind="majority_guess",
            severity="warning",
            title=f"The model predicts class {name} for everything, which {percent(own)} of the targets are",
            detail=f"{percent(float(late[top]))} of the predictions of the last {count(n, 'measurement')} are of class "
            f"{name}, {between(*steps)}; {percent(found.accuracy.value)} of them are right. The largest class has "
            f"{percent(largest)} of the targets, so even guessing would be right more often.",
            advice="Look for what favours this class: weights of the classes in the loss (weight, pos_weight) that are "
            "too large or the wrong way round, a sampler that draws it too often, a bias at the start.",
            evidence=evidence_over(steps, shares.probe, Objective.predicted_share, n, float(late[top])),
            scopes=[name],
            cause=True,
            explains=EXPLAINED,
            ruled_out=said(rate_is_right(reader), gradients_arrive(reader)),
            alternatives=[f"The {main_function(reader) or 'loss'} is weighted on purpose, so that this class is never "
                          "missed: then judge by its recall."],
            since=_since(shares, np.nan_to_num(shares.values[:, top]) >= ALWAYS),
        )
    ]  # fmt: skip


def _since(shares: Grid, holds: np.ndarray) -> int:
    """The first measurement from which on it holds to the end."""
    other = np.flatnonzero(~holds)
    return int(shares.steps[min(int(other[-1]) + 1, len(holds) - 1)]) if len(other) else int(shares.steps[0])
