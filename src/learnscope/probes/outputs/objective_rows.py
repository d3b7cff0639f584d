"""From sums over the calls of a loss function to columns: classes and yes/no answers."""

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
ONE_A_ROW = "nll_loss gives a gradient to one class a row; what comes before it was not looked at"
UNREACHED = "no backward came by the outputs, or there are too many of them"
NO_PAIR = "no two sequences of the step begin with the same token"
NO_PLACE = "the sequences have no such place with a counted target"


def fetched(calls: Sequence[LossCall]) -> list[dict[str, Array]]:
    """The sums of each call on the host, with one wait for the device."""
    held = [{**call.sums, "value": call.value, **_optional(call)} for call in calls]
    parts = [part for each in held for part in each.values()]
    if all(type(part) is np.ndarray or part.is_cpu for part in parts):
        numbers = [part.reshape(-1) if type(part) is np.ndarray else _as_array(part) for part in parts]
    else:
        device, tensors = calls[0].value.device, [torch.as_tensor(part).detach() for part in parts]
        joined = torch.cat([tensor.to(device, torch.float64).reshape(-1) for tensor in tensors]).cpu().numpy()
        numbers = np.split(joined, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    following = iter(numbers)
    return [{name: next(following) for name in each} for each in held]


def _as_array(tensor: torch.Tensor) -> NDArray[Any]:
    plain = tensor.detach()
    return (plain.double() if plain.dtype is torch.bfloat16 else plain).reshape(-1).numpy()  # NumPy has no bfloat16


def _optional(call: LossCall) -> dict[str, torch.Tensor]:
    given = {"tokens": call.tokens, "touched": call.touched, "weight": call.weight, "places": call.places}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def together(arrays: Sequence[Array]) -> Array:
    """Their sum; shorter ones are as if they had zeros at the end."""
    if len(arrays) == 1:
        return arrays[0]
    total = np.zeros(max(map(len, arrays)))
    for array in arrays:
        total[: len(array)] += array
    return total


def share(part: float, whole: float, reason: str = NO_TARGET) -> float | str:
    return float(part / whole) if whole else reason


def entropy(shares: Array) -> float:
    """−Σ p ln p, of shares that add up to 1."""
    present = shares[shares > 0]
    return -float(present @ np.log(present))


def yes_entropies(yes: Array) -> Array:
    """−p ln p − (1 − p) ln(1 − p) of each share of yes."""
    inner = np.clip(yes, 1e-300, 1 - 1e-16)
    found: Array = np.where((yes > 0) & (yes < 1), -inner * np.log(inner) - (1 - inner) * np.log1p(-inner), 0.0)
    return found


def class_shares(_calls: Sequence[LossCall], sums: Sequence[Sums], state: dict[str, Any]) -> Array:
    """Counted targets by class so far, those of this step included."""
    counts = [each["target_counts"][:-1] for each in sums]
    so_far = together([*counts, *([np.asarray(state["counts"])] if "counts" in state else [])]).astype(np.float64)
    state["counts"] = torch.from_numpy(so_far)
    return so_far


def class_tables(calls: Sequence[LossCall], sums: Sequence[Sums], so_far: Array) -> list[Table]:
    """Of cross_entropy and nll_loss."""
    width, last = max(call.width for call in calls), calls[-1]
    added = dict(zip(CLASS_NUMBERS, together([each["sums"] for each in sums]).tolist(), strict=True))
    predicted = together([each["predicted_counts"][:-1] for each in sums])
    total, answers = so_far.sum(), predicted.sum()
    shares = so_far / total if total else so_far
    targets, rows = sum(call.entries for call in calls), sum(call.rows for call in calls)
    ours = together([each["target_counts"][:-1] for each in sums])
    uncertain = entropy(shares) if total else NO_TARGET
    columns = [
        Q.step_majority.cells([share(ours.max(), ours.sum())]),
        Q.step_targets.column([int(ours.sum())]),
        Q.objective_accuracy.cells([share(added["right"], added["counted"])]),
        Q.majority_share.cells([share(so_far.max(), total)]),
        Q.target_entropy.cells([uncertain]),
        Q.classes.column([width]),
        Q.classes_seen.column([int(np.count_nonzero(so_far > 0))]),
        Q.predicted_majority.cells([share(predicted.max(), answers, NO_PREDICTION)]),
        Q.targets_out_of_range.cells([share(added["out_of_range"], targets - added["ignored"])]),
        Q.ignored_share.cells([share(added["ignored"], targets, "the step has no target")]),
        Q.constant_loss.cells([_constant_class_loss(calls, sums, shares, uncertain) if total else NO_TARGET]),
        Q.nonfinite_outputs.column([int(rows - added["finite"])]),
        *_distribution_columns(added, width, rows),
        Q.batch_softmax_columns.cells([share(added["over_batch"], width * len(calls))]),
    ]
    if 0 <= last.ignore_index < width:
        columns.append(Q.ignored_class_share.cells([share(added["ignored"], targets, "no target")]))
    if width > MOST_CLASSES:
        return of_model(columns)
    return [*of_model(columns), *_by_class(shares[:width] if total else None, predicted / (answers or math.nan))]


def _distribution_columns(added: Mapping[str, float], width: int, rows: int) -> list[Column]:
    none = SINGLE_CLASS if width < 2 else None
    return [
        Q.probability_rows.cells([none or share(added["probabilities"], rows, "the outputs have no row")]),
        Q.logprob_rows.cells([none or share(added["logprobs"], rows, "the outputs have no row")]),
    ]


def _constant_class_loss(
    calls: Sequence[LossCall], sums: Sequence[Sums], shares: Array, known: float | str
) -> float | str:
    """`known`: the entropy of the shares."""
    last, weight = calls[-1], sums[-1].get("weight")
    if any(call.weighted != last.weighted or call.smoothing != last.smoothing for call in calls):
        return WEIGHTED
    if weight is not None:
        weighed = shares[: len(weight)] * weight
        if last.smoothing or last.soft or not weighed.sum() > 0:
            return WEIGHTED
        return entropy(weighed / weighed.sum())
    return entropy((1 - last.smoothing) * shares + last.smoothing / len(shares)) if last.smoothing else known


def answer_shares(calls: Sequence[LossCall], sums: Sequence[Sums], state: dict[str, Any]) -> tuple[float, Array, Array]:
    """So far: how many rows, and by column the sum of the targets and how many of them were yes."""
    total = float(state.get("rows", 0)) + sum(call.rows for call in calls)
    before = [[np.asarray(state[name])] if name in state else [] for name in ("yes", "ever")]
    yes = together([*(each["target_sum"] for each in sums), *before[0]]).astype(np.float64)
    ever = together([*(each["target_yes"] for each in sums), *before[1]]).astype(np.float64)
    state |= {"rows": total, "yes": torch.from_numpy(yes), "ever": torch.from_numpy(ever)}
    return total, yes, ever


def answer_tables(calls: Sequence[LossCall], sums: Sequence[Sums], so_far: tuple[float, Array, Array]) -> list[Table]:
    """Of binary_cross_entropy: a single column is two classes, several are as many questions."""
    width, (total, yes, ever) = calls[0].width, so_far
    added = dict(zip(ANSWER_NUMBERS, together([each["sums"] for each in sums]).tolist(), strict=True))
    rows = sum(call.rows for call in calls)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.clip(yes / total, 0, 1)
        answered = rows - together([each["no_answer"] for each in sums])
        predicted = together([each["predicted_yes"] for each in sums]) / answered
    uncertain = float(yes_entropies(shares).mean()) if total else NO_TARGET
    entries, weighted = rows * width, any(call.weighted for call in calls)
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
        Q.nonfinite_outputs.column([int(entries - added["finite"])]),
    ]
    if calls[0].function.endswith("with_logits"):
        columns.append(Q.probability_rows.cells([share(added["within"], entries)]))
    else:
        columns.append(Q.twice_squashed.cells([share(added["twice"], entries)]))
    if width == 1:
        shares, predicted = np.append(1 - shares, shares), np.append(1 - predicted, predicted)
    return [*of_model(columns), *_by_class(shares if total else None, predicted)]


def _majority(yes: Array) -> float | str:
    """Share of the more frequent answer, mean over the questions that have any."""
    known = yes[~np.isnan(yes)]
    return float(np.maximum(known, 1 - known).mean()) if len(known) else NO_PREDICTION


def token_columns(sums: Sequence[Sums]) -> list[Column]:
    """Whether targets are the inputs themselves, and at which place."""
    seen = [each["tokens"] for each in sums if "tokens" in each]
    if not seen:
        return []
    pairs = together(seen).reshape(-1, 2).tolist()
    columns = [
        Q.targets_equal_inputs.cells([share(equal, counted, NO_PLACE)], shift=shift)
        for shift, (equal, counted) in zip(SHIFTS, pairs[:-2], strict=True)
    ]
    (padded, counted), (inner, targets) = pairs[-2:]
    columns.append(Q.ignored_inside.cells([share(inner, targets)]))
    return [*columns, *([Q.padding_share.cells([share(padded, counted)])] if counted else [])]


def place_columns(sums: Sequence[Sums]) -> list[Column]:
    """What is said at the first place of sequences; of several calls, of those that are of the only input."""
    seen = [each["places"] for each in sums if "places" in each]
    if not seen:
        return []
    if len(seen[0]) == 3:
        rows, right, bound = together(seen).tolist()
        return [
            Q.first_place_rows.column([int(rows)]),
            Q.first_place_right.cells([share(right, rows, NO_PAIR)]),
            Q.first_place_bound.cells([share(bound, rows, NO_PAIR)]),
        ]
    means = np.mean(seen, 0)
    columns = [Q.inputs_as_targets.cells([float(means[shift])], shift=shift) for shift in (0, 1)]
    if np.isfinite(means[2:]).all():
        columns += [Q.first_place_error.column([float(means[2])]), Q.first_place_floor.column([float(means[3])])]
    return columns


def untouched_column(calls: Sequence[LossCall], sums: Sequence[Sums]) -> Column:
    """Which share of the outputs no gradient has come to."""
    touched = [each["touched"] for each in sums if "touched" in each]
    if not touched or len({len(each) for each in touched}) > 1:
        return Q.untouched_outputs.cells([ONE_A_ROW if calls[0].function == "nll_loss" else UNREACHED])
    reached = touched[0] if len(touched) == 1 else np.max(touched, 0)
    return Q.untouched_outputs.column(
        [(len(reached) - np.count_nonzero(reached)) / len(reached) if len(reached) else math.nan]
    )


def of_model(columns: Sequence[Column]) -> list[Table]:
    return [Table("model", ["model"], list(columns))]


def _by_class(targets: Array | None, predictions: Array) -> list[Table]:
    if len(predictions) > MOST_CLASSES:
        return []
    names = [str(number) for number in range(len(predictions))]
    columns = [] if targets is None else [Q.target_share.column(targets[: len(names)].tolist())]
    cells = [NO_PREDICTION if math.isnan(each) else each for each in predictions.tolist()]
    return [Table("class", names, [*columns, Q.predicted_share.cells(cells)])]
