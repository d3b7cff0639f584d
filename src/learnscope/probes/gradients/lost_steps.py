"""Steps that never happened."""

from __future__ import annotations

from typing import Any

from learnscope.core.lost import LostStep
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.quantities.gradients import LostSteps as Q
from learnscope.record import Label, Measurement, Table

ROWS = 4096
"""Ids of examples that a record names."""
NOT_KNOWN, NOT_READ = "it was not known yet", "the gradients were gone"
NOT_LOGGED = "the loop logged none for it"


class LostSteps(Probe):
    """Steps that the loop skipped, that a GradScaler left out, or that an error, a signal or a kill came before.

    A record is written as soon as something shows it, and again when it is known whether the step came: the step that
    was to come, the first bad tensor in backward order, the loss that was logged for it, and the ids of its examples
    (the note `rows`), where the loop hands them over. Of attempts in a row the first 20 are recorded, of all the first
    200; the count is complete. The gradients of a finite backward whose step is skipped are not looked at.

    Seen are: a clip by norm whose norm is not finite, a logged loss that is not, a step that a GradScaler leaves out,
    and the end of the loop. On accelerators nothing waits for a norm or a loss: a norm is looked at on steps at which a
    probe reads the gradients anyway.
    """

    every: int = 1
    at: At = "end"
    needs = frozenset({"calls"})
    reads_only = True
    cost = "one number a clip; a pass over the gradients of a step that is not finite"

    def measure(self, moment: Moment) -> Measurement:
        lost = moment.handed.lost
        if lost is None:
            calls = moment.subject.calls
            return Measurement([Table("model", ["model"], [Q.lost_steps.column([calls.lost_steps])])])
        notes: dict[str, Any] = {"why": lost.why, **({"rows": list(lost.rows[:ROWS])} if lost.rows else {})}
        if len(lost.rows) > ROWS:
            notes["rows_left_out"] = len(lost.rows) - ROWS
        return Measurement(_tables(lost), notes=notes)


def _tables(lost: LostStep) -> list[Table]:
    labels: dict[str, Label] = {"attempt": lost.attempt, "cause": lost.cause}
    bad = lost.gradients
    columns = [
        Q.skipped.cells([NOT_KNOWN if lost.skipped is None else int(lost.skipped)], **labels),
        Q.loss.cells([lost.logged.get("loss", NOT_LOGGED)], **labels),
    ]
    if bad is None:
        return [Table("model", ["model"], [*columns, Q.nonfinite_tensors.cells([NOT_READ], **labels)])]
    columns += [
        Q.norm.column([bad.norm], labels),
        Q.nan.column([bad.nan], labels),
        Q.inf.column([bad.inf], labels),
        Q.nonfinite_tensors.column([bad.tensors], labels),
    ]
    tables = [Table("model", ["model"], columns)]
    if bad.first is not None:
        tables.append(Table("tensor", [bad.first], [Q.first_nonfinite.column([bad.first_entries], labels)]))
    return tables
