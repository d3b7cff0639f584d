"""What the loop's loss function is given, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from learnscope.core.handed import LossCall
from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe, Schedule
from learnscope.probes.outputs.objective_numbers import (
    no_shares,
    number_shares,
    number_tables,
    sign_tables,
    triplet_tables,
)
from learnscope.probes.outputs.objective_rows import (
    Sums,
    answer_shares,
    answer_tables,
    class_shares,
    class_tables,
    fetched,
    place_columns,
    share,
    token_columns,
    untouched_column,
)
from learnscope.quantities.outputs import Objective as Q
from learnscope.record import Column, Measurement, Table

FUNCTIONS = (
    "cross_entropy, nll_loss, binary_cross_entropy (with or without logits), mse, l1, smooth_l1 and huber loss, "
    "those that want −1 and 1, and triplet_margin_loss"
)
UNSEEN = (
    f"no call of torch's loss functions ({FUNCTIONS}) was seen before this step; a loss that is written by hand, "
    "weighted inside of torch.nn.functional, compiled, or under torch.func is not seen"
)
_SO_FAR: dict[str, Any] = {
    "classes": class_shares,
    "answers": answer_shares,
    "numbers": number_shares,
    "signs": no_shares,
    "triplets": no_shares,
}
_TABLES: dict[str, Any] = {
    "classes": class_tables, "answers": answer_tables, "numbers": number_tables, "signs": sign_tables,
    "triplets": triplet_tables,
}  # fmt: skip


class Objective(Probe):
    """What the loop's own loss function was given and has returned, for the steps that are looked at.

    It is seen wherever it is called: in the loop, in a trainer, or in a model that returns its loss. Where the loop
    calls several, or one on outputs of several widths, shares and statistics are of the one with the most targets;
    the note `of` names it, and `others` the rest. Only calls that a backward reached count, if one reached any.

    Shares "so far" are over the targets of the steps that were looked at. Of very large outputs, rows that lie equally
    far apart are looked at: the note `one_row_of` says how far. Of a loss that is not one of torch's functions nothing
    is recorded but a note, `unseen`, once.
    """

    every: Schedule = 10
    at: At = "before_step"
    needs = frozenset({"loss_calls"})
    reads_only = True
    cost = "a few passes over the outputs that the loss is given"

    def measure(self, moment: Moment) -> Measurement | None:
        calls = [call for call in moment.handed.loss_calls if call.reached] or list(moment.handed.loss_calls)
        if not calls:
            told, moment.state["told"] = "told" in moment.state, True
            return None if told else Measurement(notes={"unseen": UNSEEN})
        sums, key = fetched(calls), main_group(calls, moment.state)
        chosen = [place for place, call in enumerate(calls) if (call.function, call.width) == key]
        own, own_sums = [calls[place] for place in chosen], [sums[place] for place in chosen]
        so_far = _SO_FAR[own[0].form](own, own_sums, moment.state)
        make = partial(_tables, calls, sums, own, own_sums, so_far)
        values = torch.from_numpy(np.array([float(each["value"][0]) for each in sums]))
        return Measurement(packed={"values": values}, unpack=make, notes=_notes(calls, own))


def _tables(
    calls: Sequence[LossCall], sums: Sequence[Sums], own: Sequence[LossCall], own_sums: Sequence[Sums], so_far: Any,
    _packed: Any,
) -> list[Table]:  # fmt: skip
    first, *tables = _TABLES[own[0].form](own, own_sums, so_far)
    columns = [*value_columns(calls, sums), *first.columns, *token_columns(own_sums), *place_columns(own_sums)]
    return [Table("model", ["model"], [*columns, untouched_column(own, own_sums)]), *tables]


def main_group(calls: Sequence[LossCall], state: dict[str, Any]) -> tuple[str, int]:
    """The function and the width that statistics are of: the same as before if the step has it, else the one with the
    most targets. What was added up so far is of one group: another begins anew, unless only its width is another.
    """
    entries: dict[tuple[str, int], int] = {}
    for call in calls:
        key = call.function, call.width
        entries[key] = entries.get(key, 0) + call.entries
    before = tuple(state["group"]) if "group" in state else None
    if before in entries:
        return before
    chosen = max(entries, key=lambda key: entries[key])
    if before is not None and (before[0] != chosen[0] or calls[0].form != "classes"):
        for name in [name for name in state if name != "told"]:
            del state[name]
    state["group"] = list(chosen)
    return chosen


def value_columns(calls: Sequence[LossCall], sums: Sequence[Sums]) -> list[Column]:
    """What each function returned."""
    columns = []
    by_function: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        by_function.setdefault(call.function, []).append(place)
    for function, places in by_function.items():
        by_reduction: dict[str, list[float]] = {}
        for place in places:
            by_reduction.setdefault(calls[place].reduction, []).append(float(sums[place]["value"][0]))
        columns += [
            Q.objective_value.column([sum(values) / len(values)], {"function": function, "reduction": reduction})
            for reduction, values in by_reduction.items()
        ]
        masses = [float(sums[place]["mass"][0]) if "mass" in sums[place] else calls[place].entries for place in places]
        totals = [_total(calls[place], sums[place], mass) for place, mass in zip(places, masses, strict=True)]
        columns.append(Q.objective_mean.cells([share(sum(totals), sum(masses))], function=function))
        columns.append(Q.objective_calls.column([len(places)], {"function": function}))
    return columns


def _total(call: LossCall, sums: Sums, mass: float) -> float:
    """The sum of the losses of a call."""
    value = float(sums["value"][0])
    return value * {"mean": mass, "sum": 1.0, "none": float(call.entries)}[call.reduction]


def _notes(calls: Sequence[LossCall], own: Sequence[LossCall]) -> dict[str, Any]:
    notes: dict[str, Any] = {"of": f"{own[0].function} of {own[0].width}"}
    others = {f"{call.function} of {call.width}" for call in calls if call.width != own[0].width}
    others |= {f"{call.function} of {call.width}" for call in calls if call.function != own[0].function}
    if others:
        notes["others"] = sorted(others)
    if (stride := max(call.looked_at for call in own)) > 1:
        notes["one_row_of"] = stride
    return notes
