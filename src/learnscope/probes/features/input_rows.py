"""From numbers of a model's forwards to columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.core.forwards import ForwardCall
from learnscope.quantities.features import Inputs as Q
from learnscope.record import Column, Table

Numbers = Sequence[Mapping[str, Any]]

COMPILED = "not measured: compiled, so that hooks inside of the model do not fire"
NOT_CALLED = "its forward was not seen, or gave no tensor"
ONE_EXAMPLE = "no output of several examples was seen"
NO_SPREAD = "an output is 0 or not finite, or all are equal"
NO_LIST = "the output of an example is not a short list of finite numbers"
_SPREADS = (Q.output_spread, Q.output_cosine, Q.output_rank, Q.output_confidence, Q.output_width)
NO_ORDER = "the gradient is the same for all examples, or not finite"
NO_FINITE = "no input is finite"
NO_ROW = "no row can be compared: they are empty, constant, or equal by chance (few columns of few values)"
TOO_SHORT = "rows of few whole numbers are equal by chance"


def input_columns(calls: Sequence[ForwardCall], numbers: Numbers, data: str) -> list[Column]:
    """Scale of the inputs over several forwards together."""
    if calls[0].tokens:
        # of several forwards, the most that one of them has
        parts = [each["numbers"] for each in numbers]
        largest, distinct = (parts[0] if len(parts) == 1 else np.max(parts, 0)).tolist()
        return [
            Q.token_max.cells([_number(largest)], data=data),
            Q.token_distinct.cells([_number(distinct)], data=data),
        ]
    count, mean, squares, largest, lost = _merged([each["numbers"] for each in numbers])
    deviation = math.sqrt(squares / count) if count else NO_FINITE
    return [
        Q.input_mean.cells([mean if count else NO_FINITE], data=data),
        Q.input_std.cells([deviation], data=data),
        Q.input_max.cells([largest if count else NO_FINITE], data=data),
        Q.input_nonfinite.column([int(lost)], {"data": data}),
    ]


def _number(value: float) -> int | str:
    return "there are no tokens" if math.isnan(value) else int(value)


def _merged(parts: Sequence[NDArray[np.float64]]) -> tuple[float, float, float, float, float]:
    """Count, mean, Σ(x − mean)², largest and not finite of several parts together (Chan, Golub and LeVeque 1979)."""
    count, mean, squares, largest, lost = 0.0, 0.0, 0.0, 0.0, 0.0
    for more, other, spread, high, bad in (map(float, part) for part in parts):
        lost += bad
        if more:
            apart, total = other - mean, count + more
            squares += spread + apart * apart * count * more / total
            count, mean, largest = total, mean + apart * more / total, max(largest, high)
    return count, mean, squares, largest, lost


def output_columns(numbers: Numbers, *, compiled: bool) -> list[Column]:
    """Root mean squares of outputs: of several forwards, of all together as if they were of equal size."""
    columns = []
    for name, quantity in (("first", Q.first_output_rms), ("model", Q.output_rms)):
        found = [each["rms"][name] for each in numbers if name in each["rms"]]
        reason = COMPILED if compiled and name == "first" else NOT_CALLED
        cell = math.sqrt(sum(value * value for value in found) / len(found)) if found else reason
        columns.append(quantity.cells([cell], data="train"))
    return columns


def spread_columns(numbers: Numbers) -> list[Column]:
    """How outputs differ from example to example: of several forwards, the mean of what they gave."""
    found = [each["outputs"] for each in numbers if each["outputs"] is not None]
    if not found:
        return [quantity.cells([ONE_EXAMPLE], data="train") for quantity in _SPREADS]
    means = (found[0] if len(found) == 1 else np.mean(found, 0)).tolist()
    return [
        quantity.cells(
            [value if math.isfinite(value) else NO_LIST if quantity is Q.output_confidence else NO_SPREAD],
            data="train",
        )
        for quantity, value in zip(_SPREADS, means, strict=True)
    ]


def graph_columns(calls: Sequence[ForwardCall]) -> list[Column]:
    """What backward passes brought to outputs, and what these come from, where that was looked at."""
    found = [float(call.disorder) for call in calls if call.disorder is not None]
    known = [share for share in found if math.isfinite(share)]
    columns = [Q.gradient_disorder.cells([max(known) if known else NO_ORDER])] if found else []
    outside = [call.outside for call in calls if call.outside is not None]
    columns += [Q.outside_parameters.column([max(outside)])] if outside else []
    lost = [max(call.lost_calls.values(), default=0.0) for call in calls if call.lost_calls is not None]
    return [*columns, *([Q.lost_calls.column([min(lost)])] if lost else [])]


def row_columns(
    call: ForwardCall, hashes: NDArray[Any], duplicates: int, ever: tuple[int, int], overlap: tuple[int, int] | None,
    holdout: Mapping[str, Any] | None,
) -> list[Column]:  # fmt: skip
    """Duplicates, and rows of the holdout."""
    rows = len(hashes)
    reason = TOO_SHORT if call.hashes is None else None if rows else NO_ROW
    columns = [
        Q.rows.column([rows]), Q.duplicate_share.cells([reason or duplicates / rows]),
        Q.seen_share.cells([reason or ever[0] / rows]), Q.distinct_rows.cells([reason or ever[1]]),
    ]  # fmt: skip
    if holdout is None:
        return columns
    if "reason" in holdout:
        reason = holdout["reason"]
    elif holdout["form"] != call.form:
        reason = f"the holdout's rows are {holdout['form']}, those in training {call.form}: they cannot be equal"
    held = len(holdout.get("hashes", ()))
    same, seen = overlap or (0, 0)
    columns.append(Q.holdout_overlap.cells([reason or same / rows]))
    columns.append(Q.holdout_seen.cells([reason or (seen / held if held else NO_ROW)]))
    return columns


def norm_tables(calls: Sequence[ForwardCall], numbers: Numbers) -> list[Table]:
    """Of batch norm layers, in the last forward that had them."""
    for call, each in zip(reversed(calls), reversed(numbers), strict=True):
        if call.drifts:
            drifts = each["drifts"]
            columns = [
                Q.norm_drift.column([float(drift[0]) for drift in drifts]),
                Q.norm_scale_drift.column([float(drift[1]) for drift in drifts]),
                Q.norm_fixed.column([int(name in call.fixed) for name in call.drifts]),
            ]
            return [Table("layer", list(call.drifts), columns)]
    return []
