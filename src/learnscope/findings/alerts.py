"""The findings that matter while a run is going on, from the analyses that judge it afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from learnscope.findings import Analysis, find, findings_of
from learnscope.findings.gradients.nonfinite import nonfinite
from learnscope.findings.outputs.course import diverging
from learnscope.findings.outputs.guesses import not_learning
from learnscope.findings.outputs.held_out.overfitting import overfitting
from learnscope.findings.outputs.spikes import loss_spikes
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import OnePass, one_pass
from learnscope.record import Finding
from learnscope.record.finding import with_taken_in
from learnscope.store.reader import RunReader

ALERTS: dict[str, Analysis] = {
    "nonfinite": nonfinite,
    "spike": loss_spikes,
    "diverging": diverging,
    "not_learning": not_learning,
    "overfitting": overfitting,
}
"""By the name under which an alert is asked for."""
AT_ONCE = ("nonfinite", "spike")
"""What has happened and stays true. The others may pass: they must be seen twice."""


def as_it_is_now(reader: RunReader) -> OnePass:
    """A run that grows, read once for all that is asked about it now."""
    return one_pass(reader)


def alarming(run: OnePass, cuts: Cuts | None = None) -> Iterator[tuple[str, Finding]]:
    """The findings graver than a note, each with the name of its alert."""
    judged_by = cuts or Cuts()
    for name, function in ALERTS.items():
        for finding in findings_of(function, run, judged_by):
            if finding.severity != "info":
                yield name, finding


def with_its_cause(run: OnePass, finding: Finding) -> Finding:
    """The finding of the whole run that takes this one in, if there is one: what is behind it. Runs all analyses."""
    for root in find(run):
        if any(each.fingerprint == finding.fingerprint for each in with_taken_in([root])):
            return root
    return finding
