"""From sums over the calls of a loss function to columns: classes, yes/no answers and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learnscope.core.handed import LossCall
from learnscope.quantities.outputs import Objective as Q
from learnscope.record import Column, Table
from learnscope.tensor.outputs.objective import ANSWER_NUMBERS, CLASS_NUMBERS, SHIFTS

Array = NDArray[np.float64]
Sums = Mapping[str, Array]

MOST_CLASSES = 100
NO_TARGET = "no target of the step is counted"
NO_PREDICTION = "no counted row of the outputs is finite"
SINGLE_CLASS = "a single class: softmax of one number is always 1"
WEIGHTED = "the loss weighs its targets in a way for which the best constant has no simple form"
NO_FORM = "the best constant for this loss has no simple form"
ONE_A_ROW = "nll_loss gives a gradient to one class a row; what comes before it was not looked at"
UNREACHED = "no backward came by the outputs, or there are too many of them"
NO_PLACE = "the sequences have no such place with a counted target"


def fetched(calls: Sequence[LossCall]) -> list[dict[str, Array]]:
    """The sums of each call in float64, with one wait for the device."""
    held = [{**call.sums, "value": call.value, **_optional(call)} for call in calls]
    tensors = [tensor.detach().double().reshape(-1) for each in held for tensor in each.values()]
    if all(tensor.is_cpu for tensor in tensors):
        numbers = [tensor.numpy() for tensor in tensors]
    else:
        joined = torch.cat([tensor.to(calls[0].value.device) for tensor in tensors]).cpu().numpy()
        numbers = np.split(joined, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    following = iter(numbers)
    return [{name: next(following) for name in each} for each in held]


def _optional(call: LossCall) -> dict[str, torch.Tensor]:
    given = {"tokens": call.tokens, "touched": call.touched, "weight": call.weight}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def share(part: float, whole: float, reason: str = NO_TARGET) -> float | str:
    return float(part / whole) if whole else reason


def entropy(shares: Array) -> float:
    """−Σ p ln p, of shares that add up to 1."""
    present = shares[shares > 0]
    return float(-(present * np.log(present)).sum())


def yes_entropies(yes: Array) -> Array:
    """−p ln p − (1 − p) ln(1 − p) of each share of yes."""
    inner = np.clip(yes, 1e-300, 1 - 1e-16)
    found: Array = np.where((yes > 0) & (yes < 1), -inner * np.log(inner) - (1 - inner) * np.log1p(-inner), 0.0)
    return found


def class_tables(calls: Sequence[LossCall], sums: Sequence[Sums], state: dict[str, Any]) -> list[Table]:
    """Of cross_entropy and nll_loss."""
    width, last = max(call.width for call in calls), calls[-1]
    added = dict(zip(CLASS_NUMBERS, np.sum([each["sums"] for each in sums], 0), strict=True))
    so_far = _grown(state.get("counts"), width)
    for each in sums:
        so_far[: len(each["target_counts"])] += each["target_counts"]
    state["counts"] = torch.from_numpy(so_far)
    predicted = np.sum(
        [np.pad(each["predicted_counts"], (0, width - len(each["predicted_counts"]))) for each in sums], 0
    )
    total = so_far.sum()
    shares = so_far / total if total else so_far
    columns = [
        Q.objective_accuracy.cells([share(added["right"], added["counted"])]),
        Q.majority_share.cells([share(so_far.max(), total)]),
        Q.target_entropy.cells([entropy(shares) if total else NO_TARGET]),
        Q.classes.column([width]),
        Q.classes_seen.column([int((so_far > 0).sum())]),
        Q.predicted_majority.cells([share(predicted.max(), predicted.sum(), NO_PREDICTION)]),
        Q.targets_out_of_range.cells([share(added["out_of_range"], added["targets"] - added["ignored"])]),
        Q.ignored_share.cells([share(added["ignored"], added["targets"], "the step has no target")]),
        Q.constant_loss.cells([_constant_class_loss(calls, sums, shares) if total else NO_TARGET]),
        Q.nonfinite_outputs.column([int(added["nonfinite"])]),
        *_distribution_columns(added, width),
    ]
    if 0 <= last.ignore_index < width:
        columns.append(Q.ignored_class_share.cells([share(added["ignored"], added["targets"], "no target")]))
    return [*_model(columns), *_by_class(shares if total else None, predicted / (predicted.sum() or math.nan))]


def _grown(counts: Any, width: int) -> Array:
    """Counts of classes from before, with room for more: a loss over the batch itself has as many as examples."""
    held: Array = np.zeros(0) if counts is None else np.asarray(counts, np.float64)
    return np.pad(held, (0, max(0, width - len(held))))


def _distribution_columns(added: Mapping[str, float], width: int) -> list[Column]:
    none = SINGLE_CLASS if width < 2 else None
    return [
        Q.probability_rows.cells([none or share(added["probabilities"], added["rows"], "the outputs have no row")]),
        Q.logprob_rows.cells([none or share(added["logprobs"], added["rows"], "the outputs have no row")]),
    ]


def _constant_class_loss(calls: Sequence[LossCall], sums: Sequence[Sums], shares: Array) -> float | str:
    last, weight = calls[-1], sums[-1].get("weight")
    if any(call.weighted != last.weighted or call.smoothing != last.smoothing for call in calls):
        return WEIGHTED
    if weight is not None:
        weighed = shares * np.pad(weight, (0, len(shares) - len(weight)), constant_values=1.0)
        if last.smoothing or last.soft or not weighed.sum() > 0:
            return WEIGHTED
        return entropy(weighed / weighed.sum())
    return entropy((1 - last.smoothing) * shares + last.smoothing / len(shares))


def answer_tables(calls: Sequence[LossCall], sums: Sequence[Sums], state: dict[str, Any]) -> list[Table]:
    """Of binary_cross_entropy: a single column is two classes, several are as many questions."""
    width = calls[0].width
    added = dict(zip(ANSWER_NUMBERS, np.sum([each["sums"] for each in sums], 0), strict=True))
    total = float(state.get("rows", 0)) + added["rows"]
    yes = _grown(state.get("yes"), width) + np.sum([each["target_sum"] for each in sums], 0)
    ever = _grown(state.get("ever"), width) + np.sum([each["target_yes"] for each in sums], 0)
    state |= {"rows": total, "yes": torch.from_numpy(yes), "ever": torch.from_numpy(ever)}
    answered = added["rows"] - np.sum([each["no_answer"] for each in sums], 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.clip(yes / total, 0, 1)
        predicted = np.sum([each["predicted_yes"] for each in sums], 0) / answered
    uncertain = float(yes_entropies(shares).mean()) if total else NO_TARGET
    entries, weighted = added["rows"] * width, any(call.weighted for call in calls)
    seen = int((ever > 0).sum()) if width > 1 else int((ever > 0).sum() + (ever < total).sum())
    columns = [
        Q.objective_accuracy.cells([share(added["right"], entries)]),
        Q.majority_share.cells([float(np.maximum(shares, 1 - shares).mean()) if total else NO_TARGET]),
        Q.target_entropy.cells([uncertain]),
        Q.classes.column([max(2, width)]),
        Q.classes_seen.column([seen]),
        Q.predicted_majority.cells([_majority(predicted)]),
        Q.targets_out_of_range.cells([share(added["out_of_range"], entries)]),
        Q.constant_loss.cells([WEIGHTED if weighted else uncertain]),
        Q.nonfinite_outputs.column([int(added["nonfinite"])]),
    ]
    if calls[0].function.endswith("with_logits"):
        columns.append(Q.probability_rows.cells([share(added["within"], entries)]))
    if width == 1:
        shares, predicted = np.append(1 - shares, shares), np.append(1 - predicted, predicted)
    return [*_model(columns), *_by_class(shares if total else None, predicted)]


def _majority(yes: Array) -> float | str:
    """Share of the more frequent answer, mean over the questions that have any."""
    known = yes[~np.isnan(yes)]
    return float(np.maximum(known, 1 - known).mean()) if len(known) else NO_PREDICTION


def number_tables(calls: Sequence[LossCall], sums: Sequence[Sums], state: dict[str, Any]) -> list[Table]:
    """Of mse_loss, l1_loss, smooth_l1_loss and huber_loss."""
    width, given = calls[0].width, ("count", "mean", "squares")
    held = [np.asarray(state[name], np.float64) for name in given] if "count" in state else [np.zeros(width)] * 3
    if len(held[0]) != width:  # a model with outputs of any length
        held = [np.zeros(width)] * 3
    targets = merged([held, *([each[name] for name in given] for each in sums)])
    state |= {name: torch.from_numpy(values) for name, values in zip(given, targets, strict=True)}
    outputs = merged([list(each["outputs"][:3, None]) for each in sums])
    lost = np.sum([each["outputs"][3:] for each in sums], 0)
    mean, deviation, within = pooled(*targets)
    output_mean, output_deviation, _ = pooled(*outputs)
    function = calls[0].function
    constant: float | str = NO_FORM
    if function == "mse_loss":
        constant = within
    elif function == "l1_loss":
        entries = [float(each["count"].sum()) for each in sums]
        constant = share(sum(float(e["deviation"][0]) * n for e, n in zip(sums, entries, strict=True)), sum(entries))
    columns = [
        Q.constant_loss.cells([constant]),
        Q.target_mean.cells([mean]), Q.target_std.cells([deviation]),
        Q.output_mean.cells([output_mean]), Q.output_std.cells([output_deviation]),
        Q.nonfinite_outputs.column([int(lost[0])]), Q.nonfinite_targets.column([int(lost[1])]),
        Q.broadcast.column([max(call.broadcast for call in calls)]),
    ]  # fmt: skip
    return _model(columns)


def merged(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Count, mean and Σ(x − mean)² of several parts together (Chan, Golub and LeVeque 1979)."""
    count, mean, squares = (np.asarray(values, np.float64) for values in parts[0])
    for more, other, spread in parts[1:]:
        total = count + more
        with np.errstate(invalid="ignore"):
            apart, weight = other - mean, np.where(total > 0, more / np.maximum(total, 1), 0.0)
        squares = squares + spread + apart**2 * count * weight
        count, mean = total, mean + apart * weight
    return [count, mean, squares]


def pooled(count: Array, mean: Array, squares: Array) -> tuple[float | str, float | str, float | str]:
    """Mean and population deviation over all columns, and the mean variance within them."""
    total = float(count.sum())
    if not total:
        return NO_TARGET, NO_TARGET, NO_TARGET
    middle = float((count * mean).sum() / total)
    within = float(squares.sum() / total)
    between = float((count * (mean - middle) ** 2).sum() / total)
    return middle, math.sqrt(within + between), within


def token_columns(sums: Sequence[Sums]) -> list[Column]:
    """Whether targets are the inputs themselves, and at which place."""
    seen = [each["tokens"] for each in sums if "tokens" in each]
    if not seen:
        return []
    pairs = np.sum(seen, 0).reshape(-1, 2)
    columns = [
        Q.targets_equal_inputs.cells([share(equal, counted, NO_PLACE)], shift=shift)
        for shift, (equal, counted) in zip(SHIFTS, pairs[:-1], strict=True)
    ]
    padded, counted = pairs[-1]
    return [*columns, *([Q.padding_share.cells([share(padded, counted)])] if counted else [])]


def untouched_column(calls: Sequence[LossCall], sums: Sequence[Sums]) -> Column:
    """Which share of the outputs no gradient has come to."""
    touched = [each["touched"] for each in sums if "touched" in each]
    if not touched or len({len(each) for each in touched}) > 1:
        return Q.untouched_outputs.cells([ONE_A_ROW if calls[0].function == "nll_loss" else UNREACHED])
    return Q.untouched_outputs.column([float((np.max(touched, 0) == 0).mean())])


def _model(columns: Sequence[Column]) -> list[Table]:
    return [Table("model", ["model"], list(columns))]


def _by_class(targets: Array | None, predictions: Array) -> list[Table]:
    if len(predictions) > MOST_CLASSES:
        return []
    names = [str(number) for number in range(len(predictions))]
    columns = [] if targets is None else [Q.target_share.column(targets[: len(names)].tolist())]
    cells = [NO_PREDICTION if math.isnan(each) else each for each in predictions.tolist()]
    return [Table("class", names, [*columns, Q.predicted_share.cells(cells)])]
