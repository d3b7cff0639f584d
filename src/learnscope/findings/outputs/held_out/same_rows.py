"""Training that sees the same few examples at every step."""

from __future__ import annotations

from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.worse_on_holdout import gap
from learnscope.quantities.features import Inputs
from learnscope.reading.course.chance import last_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader


def same_rows(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Fewer examples than anything can be told of, all of them seen at the first looked-at step, and a worse holdout.

    Data sets that are a batch each are larger; without a holdout it may be the test whether a model can learn one
    batch by heart.
    """
    seen, distinct, times = series(reader, Inputs.seen_share).finite, last_of(reader, Inputs.distinct_rows), gap(reader)
    if len(seen) < 2 * cuts.measurements or not distinct or distinct >= cuts.chance_examples:
        return []
    if float(seen.values[1:].min()) < cuts.surely or times is None or times <= cuts.worse_holdout:
        return []
    steps = int(seen.steps[0]), int(seen.steps[-1])
    return [
        Finding(
            kind="duplicated_data",
            severity="warning",
            title=f"Every step trains on the same {count(int(distinct), 'example')}",
            detail=f"All rows of {count(len(seen) - 1, 'looked-at step')} had been there at the first, bit for bit. "
            f"The holdout loss is {num(times)} times the training loss.",
            advice="Look for a generator or a seed that is set again at every step or epoch, an iterator that is made "
            "anew for each batch, and a subset that was left from debugging.",
            evidence=evidence_over(steps, seen.probe, Inputs.distinct_rows, len(seen), distinct),
            cause=True,
            explains=(
                "overfitting",
                "worsening",
                "memorised",
                "not_generalising",
                "holdout_overlap",
                "holdout_differs",
            ),
            alternatives=["A batch that is memorised on purpose, to test the model: nothing is wrong then."],
            since=steps[0],
        )
    ]
