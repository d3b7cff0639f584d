"""Data that no model can learn from as they are handed over: numbers that are not finite, shapes that broadcast."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities import Quantity
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import main_function
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.lost import rows_told
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader


@analysis(
    place=12, check="inputs and targets are finite", needs=[(Inputs.input_nonfinite, Objective.nonfinite_targets)]
)
def not_finite(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (no cut: one NaN is one too many)
    inputs = series(reader, Inputs.input_nonfinite, data="train")
    targets = series(reader, Objective.nonfinite_targets)
    looked_at = ((inputs, Inputs.input_nonfinite, "inputs"), (targets, Objective.nonfinite_targets, "targets"))
    return [_of_numbers(reader, *each) for each in looked_at if (each[0].finite.values > 0).any()]


def _of_numbers(reader: RunReader, found: Series, quantity: Quantity, what: str) -> Finding:
    seen = found.finite
    bad = seen.values > 0
    first, times = int(seen.steps[bad][0]), int(bad.sum())
    how_many = int(seen.values[bad][0])
    return Finding(
        kind="data_not_finite",
        severity="warning",
        title=f"The {what} themselves are not finite: {count(how_many, 'number')} of the batch of step {first:,}",
        detail=f"NaN or infinity among the {what} in {times:,} of {count(len(seen), 'batch', 'batches')} that were "
        f"looked at; what the others held is not known.{rows_told(reader, first)}",
        advice=f"Look for missing values, divisions by zero and logarithms of 0 in what makes the {what}, and check a "
        "whole epoch of the data with torch.isfinite before training.",
        evidence=evidence_over((first, int(seen.steps[bad][-1])), found.probe, quantity, len(seen), float(how_many)),
        cause=True,
        explains=["nonfinite", "skipped_steps", "bad_batch", "loss_spike", "worsening", "overfitting", "diverging"],
        ruled_out=["The optimisation: what is not finite was so before the model had seen it."],
        since=first,
    )  # fmt: skip


@analysis(place=23, check="outputs and targets of one shape", needs=[Objective.broadcast], at_least="measurements")
def broadcast(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Every output compared with every target, because their shapes differ by a dimension of one."""
    found = series(reader, Objective.broadcast).finite
    # the median: in a last batch of one example there is nothing to broadcast
    factor = float(np.median(found.values)) if len(found) >= cuts.measurements else 1.0
    if factor <= 1:
        return []
    function = main_function(reader) or "The loss function"
    first, last = int(found.steps[0]), int(found.steps[-1])
    return [
        Finding(
            kind="targets_broadcast",
            severity="critical",
            title="Outputs and targets broadcast: every output is compared with the targets of all examples",
            detail=f"{function} compared {num(factor)} times as many pairs as there are outputs, at each of "
            f"{count(len(found), 'measurement')}: shapes such as N × 1 and N make N × N. The best answer to that is "
            "the mean of the targets, whatever the input.",
            advice="Bring both to one shape: outputs.squeeze(-1), or targets.unsqueeze(-1).",
            evidence=evidence_over((first, last), found.probe, Objective.broadcast, len(found), factor),
            cause=True,
            explains=["not_learning", "plateau", "labels_unrelated", "worsening", "overfitting", "embedding_collapse"],
            since=first,
        )
    ]
