"""Autoencoders that give the same for every input: a code that another term of the loss keeps empty."""

from __future__ import annotations

import math
import re

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss, Objective
from learnscope.reading.course.chance import last_of, logged_over_mean, objective_mean
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import labels_of, series
from learnscope.reading.words import between, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

SAME = 0.1
"""Relative difference of mean and deviation up to which targets are the inputs themselves."""
DIVERGENCES = ("kl", "kld", "kl_loss", "kl_div", "kl_divergence", "divergence", "loss_kl", "loss_kld")
"""Names by which loops log the divergence of a code from its prior."""
EMPTY = 0.1
"""Nats of such a divergence, below which a code says next to nothing."""
LEAST = 50
"""Losses below which a model may not have begun to learn."""


def rebuilds_inputs(reader: RunReader) -> bool:
    """Whether the targets are the inputs: as many numbers an example, of the same mean and deviation."""
    level, spread = last_of(reader, Objective.target_mean), last_of(reader, Objective.target_std)
    ours = [series(reader, q, data="train").finite.values for q in (Inputs.input_mean, Inputs.input_std)]
    width = series(reader, Inputs.output_width, data="train").finite.values
    if level is None or not spread or not all(map(len, ours)) or not len(width) or _numbers(reader) != int(width[-1]):
        return False
    mean, deviation = (float(np.median(values)) for values in ours)
    return abs(mean - level) < SAME * spread and abs(deviation / spread - 1) < SAME


def _emptied(reader: RunReader) -> bool:
    """Whether outputs are of the size of the inputs, and a divergence that the loop logs has gone to almost nothing.

    As of an autoencoder whose targets are not the inputs themselves: without noise, or as a mask.
    """
    width = series(reader, Inputs.output_width, data="train").finite.values
    if not len(width) or _numbers(reader) != int(width[-1]):
        return False
    for key in DIVERGENCES:
        values = series(reader, Loss.logged.at(key=key)).finite.values
        last = values[-len(values) // 3 :]
        if len(values) >= LEAST // 2 and 0 <= float(np.median(last)) < EMPTY and (last >= 0).all():
            return True
    return False


def _numbers(reader: RunReader) -> int | None:
    """How many numbers an input has, by the note that describes it: `0: float32[1, 8, 8]`."""
    columns = reader.columns()
    noted = [note for label in labels_of(reader, Inputs) for _, note in columns.notes(label, "input") if note]
    shape = re.search(r"\[([\d, ]*)\]$", str(noted[-1])) if noted else None
    return math.prod(int(size) for size in shape[1].split(",") if size.strip()) if shape else None


@analysis(place=82, check="code of an autoencoder", needs=[Loss.loss, Objective.constant_loss, Inputs.output_spread])
def posterior_collapse(reader: RunReader, cuts: Cuts) -> list[Finding]:
    course, own = loss_course(reader), objective_mean(reader).finite
    spread, wide = (series(reader, q, data="train").finite for q in (Inputs.output_spread, Inputs.input_std))
    n = len(spread) // 3
    if course is None or len(course) < LEAST or n < cuts.measurements or not len(wide) or not len(own):
        return []
    apart, given = float(np.median(spread.values[-n:])), float(np.median(wide.values))
    rebuilds = rebuilds_inputs(reader) or _emptied(reader)
    if apart > cuts.empty_code * given or not rebuilds or logged_over_mean(reader) is not None:
        return []
    steps = int(spread.steps[0]), int(spread.steps[-1])
    return [
        Finding(
            kind="posterior_collapse",
            severity="warning",
            title="The autoencoder gives the mean of its targets for every input: nothing passes through its code",
            detail=f"Outputs differ from example to example by {num(apart)} (standard deviation, median of the last "
            f"{count(n, 'measurement')}, {between(*steps)}), and the numbers of the inputs by {num(given)}. The logged "
            "loss has another term beside the error, which is content with an empty code; the loss function alone "
            f"returned {num(float(np.median(own.values[-n:])))} a number.",
            advice="Lower the weight of the other term, as the KL divergence of a variational autoencoder, or raise it "
            "from 0 over the first steps; see that both terms are summed or both averaged over the same numbers.",
            evidence=evidence_over(steps, spread.probe, Inputs.output_spread, len(spread), apart),
            cause=True,
            explains=["not_learning", "plateau", "labels_unrelated", "embedding_collapse", "vanishing"],
            ruled_out=["Inputs that say nothing of the targets: they are the targets."],
            since=steps[0],
        )
    ]
