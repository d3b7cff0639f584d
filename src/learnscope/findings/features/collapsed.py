"""Outputs that become the same for all inputs while the loss falls: embeddings that collapse, whatever the loss."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.chance import BY_HAND, chance_of
from learnscope.reading.course.loss_course import Course, loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import between, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

NARROW = 4
"""Numbers an output has at least to be an embedding."""
COSINE_LOSS = 4.0
"""The largest loss that is made of cosines: two terms of 2 − 2 cos."""
LOWEST_COSINE = -0.99
"""A loss of −cos ends here when all cosines are 1."""
NO_NOISE = 1e-3
"""Deviation of a loss from batch to batch, as a share of it, below which it is the same for all of them."""
DECIDED = 0.9
"""Mean largest softmax of the outputs from which they may be logits of a choice that is the same everywhere."""


@analysis(place=83, check="collapse of embeddings", needs=[Inputs.output_cosine, Loss.loss], at_least="measurements")
def collapsed(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """From the outputs alone: of losses with targets that are known, `collapse` of the family `outputs` says more."""
    course, apart = loss_course(reader), 1 - _of(reader, "output_cosine").values
    at, size, spread = (_of(reader, name) for name in ("output_cosine", "output_rms", "output_spread"))
    n = len(apart) // 3
    if course is None or _has_targets(reader) or n < cuts.measurements or not _wide(reader):
        return []
    shrunk = float(np.median(size.values[-n:])) < cuts.collapsed_size * float(size.values[0])
    alike = float(np.median(apart[-n:])) < cuts.collapsed_apart and _fell(apart, n, cuts)
    closer = _fell(
        spread.values, n, cuts
    )  # as a loss of squared distances has it; of one of cosines, only angles shrink
    if not (shrunk or (alike and (closer or _of_cosines(course)))) or _decided(reader, n):
        return []
    if not _solved(course, cuts) and not (alike and closer and _the_same_for_all(course)):
        return []
    close = np.flatnonzero(apart >= cuts.collapsed_apart) if alike else np.flatnonzero(
        size.values >= cuts.collapsed_size * float(size.values[0]))  # fmt: skip
    since = int(at.steps[min(int(close[-1]) + 1, len(at) - 1)]) if len(close) else int(at.steps[0])
    return [_finding(course, at, spread, size, apart, n, since)]


def _of(reader: RunReader, name: str) -> Series:
    return series(reader, Inputs.named(name), data="train").finite


def _has_targets(reader: RunReader) -> bool:
    chance = chance_of(reader)
    return chance is not None and chance.function != BY_HAND


def _wide(reader: RunReader) -> bool:
    width, rows = _of(reader, "output_width").values, _of(reader, "input_std").values
    varied = not len(rows) or bool(rows.any())  # the same input gives the same output
    return bool(len(width)) and float(np.median(width)) >= NARROW and varied


def _fell(values: np.ndarray, n: int, cuts: Cuts) -> bool:
    return float(np.median(values[-n:])) < cuts.collapsed_share * float(values[0])


def _of_cosines(course: Course) -> bool:
    return float(np.abs(course.values).max()) <= COSINE_LOSS


def _solved(course: Course, cuts: Cuts) -> bool:
    """Whether the loss is next to its least value: that outputs are the same is then what it asks for."""
    start, end = course.start.value, course.end.value
    return (0 <= end < cuts.collapsed_share * start) or -1.001 <= end <= LOWEST_COSINE


def _the_same_for_all(course: Course) -> bool:
    """Whether the loss is one number whatever the batch, as the margin is of which outputs that are alike fall short:
    no loss of examples that differ is."""
    late = course.values[-(len(course) // 3) :]
    return float(course.end.value) > 0 and float(late.std()) < NO_NOISE * course.end.value


def _decided(reader: RunReader, n: int) -> bool:
    """A policy that has learned to do the same in every state has outputs of one direction too."""
    values = _of(reader, "output_confidence").values
    return bool(len(values)) and float(np.median(values[-n:])) > DECIDED


def _finding(
    course: Course, at: Series, spread: Series, size: Series, apart: np.ndarray, n: int, since: int
) -> Finding:  # fmt: skip
    ends = int(at.steps[-n]), int(at.steps[-1])
    return Finding(
        kind="embedding_collapse",
        severity="critical",
        title="The outputs have collapsed: they are the same for all inputs, and the loss "
        + (f"stays at {num(course.end.value)} for it" if _the_same_for_all(course) else "is content with that"),
        detail=f"The mean cosine of the outputs of two examples went from {num(1 - float(apart[0]))} to "
        f"{1 - float(np.median(apart[-n:])):.6f} and their standard deviation over examples from "
        f"{num(float(spread.values[0]))} to {num(float(np.median(spread.values[-n:])))}, of outputs of "
        f"{num(float(np.median(size.values[-n:])))} ({between(*ends)}, {count(n, 'measurement')}), while the loss went "
        f"from {num(course.start.value)} to {num(course.end.value)}.",
        advice="Hold different inputs apart: negatives, a variance or decorrelation term, or stop the gradient on one "
        "side with a slowly moving copy of the model. Of triplets: take easier ones first (semi-hard, or all of a "
        "batch), and a lower learning rate.",
        evidence=evidence_over(ends, at.probe, Inputs.output_cosine, n, 1 - float(np.median(apart[-n:]))),
        cause=True,
        explains=["not_moving", "vanishing", "zero_gradients", "plateau", "not_learning", "updates_absorbed"],
        alternatives=["Targets that are nearly the same for all examples beside their size: take their mean off."],
        since=since,
    )
