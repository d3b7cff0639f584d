"""Parts of a model that are computed and do not reach the loss, by what their gradients show."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis, findings_of
from learnscope.findings.evidence import evidence_over
from learnscope.findings.gradients.absent import absent
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import grid
from learnscope.reading.words import between, count, listed
from learnscope.record import Finding
from learnscope.store.reader import RunReader


@analysis(
    place=29, check="parts that do not reach the loss", needs=[GradientFlow.norm.of("layer")], at_least="measurements"
)
def unreached_parts(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Layers with a gradient of exactly 0 at every measurement, while layers before them get another.

    Dead units would take the gradient from all that comes before them too.
    """
    zero = [f for f in findings_of(absent, reader, cuts) if f.kind == "zero_gradients" and f.severity != "info"]
    if not zero:
        return []
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    places = [norms.scopes.index(name) for name in zero[0].scopes]
    always = [place for place in places if not np.nan_to_num(norms.values[:, place]).any()]
    reached = np.flatnonzero((np.nan_to_num(norms.values) > 0).all(axis=0))
    names = [norms.scopes[place] for place in always if len(reached) and reached[0] < place]
    if not names or len(names) < len(places):
        return []
    steps = int(norms.steps[0]), int(norms.steps[-1])
    single = len(names) == 1
    return [
        Finding(
            kind="unreached_outputs",
            severity="warning",
            title=f"{listed(names, cuts.names_listed)}: computed, and without any effect on the loss",
            detail=f"Every entry of the gradient of {listed(names, cuts.names_listed)} was exactly 0 in all "
            f"{count(len(norms.steps), 'measurement')}, {between(*steps)}, while {norms.scopes[int(reached[0])]} "
            "before "
            f"{'it' if single else 'them'} was trained: dead units would have stopped that gradient too.",
            advice="Check that the loss uses this output: a head that was left out of the sum, a weight of 0, a column "
            "that is cut off, an output that is overwritten.",
            evidence=evidence_over(steps, norms.probe, GradientFlow.norm, len(norms.steps), 0.0),
            scopes=names,
            cause=True,
            explains=["zero_gradients", "not_moving"],
            since=steps[0],
        )
    ]
