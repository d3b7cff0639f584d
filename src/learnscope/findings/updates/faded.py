"""Steps that fade away by themselves, at a learning rate that stays: an optimizer that divides by all it has seen."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.updates.rate_level import STANDSTILL
from learnscope.quantities.outputs import Loss
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.course.chance import Guessing, guessing
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import highest_rates, moves_of, optimizers_of, options_of, reach_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

FADED = 0.03
"""Size of a step in the last third, in units of those in the first, below which steps have faded."""
STILL_STRONG = 0.3
"""The same of gradients, above which it is not these that have faded."""
NEAR_CHANCE = 0.95
"""Share of the loss of a guess above which next to nothing was learned."""
LITTLE = 0.1
"""Share of the loss that the steps of the later half could change at most, to first order."""


@analysis(place=12, check="steps that fade away", needs=[Loss.loss, ParameterChange.l2], at_least="measurements")
def faded(reader: RunReader, cuts: Cuts) -> list[Finding]:
    course, found, moves, reach = loss_course(reader), guessing(reader), moves_of(reader), reach_of(reader)
    if course is None or moves is None or reach is None or len(moves) < 3 * cuts.measurements:
        return []
    unlearned = found is not None and (found.better is False or _near_chance(found))
    third, half = len(moves) // 3, int(moves.steps[-1]) // 2
    early, late = float(np.median(moves.per_step[:third])), float(np.median(moves.per_step[-third:]))
    gradients = float(np.median(reach.norm[-third:])) / max(float(np.median(reach.norm[:third])), 1e-300)
    later = reach.steps - reach.lengths >= half
    could = float((reach.change * reach.lengths)[later].sum())
    if not unlearned or late > FADED * early or gradients < STILL_STRONG or could > LITTLE * abs(course.end.value):
        return []
    rates = highest_rates(reader).finite.values
    if len(rates) and rates[-1] < FADED * rates.max():  # it is the schedule's doing, of which others speak
        return []
    names = [str(optimizer.get("class", "")) for optimizer in optimizers_of(reader)]
    decay = [value for value in options_of(reader, "lr_decay") if value]
    if not decay and not any("Adagrad" in name for name in names):  # others forget what made their steps small
        return []
    why = f" Its lr_decay is {num(float(decay[0]))}: the rate is divided by 1 + {num(float(decay[0]))} · step." \
        if decay else ""  # fmt: skip
    span = int(moves.steps[0]), int(moves.steps[-1])
    return [
        Finding(
            kind="learning_rate_too_low",
            severity="warning",
            title=f"The steps fade away: weights move by {percent(late)} a step in the end, and by {percent(early)} "
            "at first",
            detail=f"The gradient is {num(gradients)} times what it was, and steps are {num(late / max(early, 1e-300))}"
            f" times as large ({count(len(moves), 'measurement')}, {between(*span)}), of {names[0] or 'the optimizer'}"
            f".{why} All steps of the later half together could change the loss by {num(could)} at most, to first "
            f"order, and it stands at {num(course.end.value)}, no better than guessing.",
            advice="Take the optimizer's own decay away (lr_decay=0), or raise the learning rate; Adagrad divides by "
            "all gradients so far in any case, and Adam or RMSprop by recent ones.",
            evidence=evidence_over(span, moves.probe, ParameterChange.update_to_weight, len(moves), late),
            cause=True,
            explains=[kind for kind in STANDSTILL if kind != "learning_rate_too_low"],
            ruled_out=[f"Gradients that vanish: they are {num(gradients)} times what they were."],
            since=int(course.steps[0]),
        )
    ]


def _near_chance(found: Guessing) -> bool:
    loss = found.chance.loss
    return found.course is not None and loss is not None and found.course.end.value > NEAR_CHANCE * loss
