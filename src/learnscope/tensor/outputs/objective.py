"""What a loss function was given: sums over the rows of its outputs and targets, without a wait for the device.

Rows are what the loss is a mean of: examples, positions of a sequence, pixels. Columns are classes (`class_sums`),
yes/no answers (`answer_sums`) or numbers (`number_sums`). Outputs of more than `MOST` entries are looked at in rows
that lie equally far apart; targets that are classes are all counted.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from learnscope.tensor.host import lent
from learnscope.tensor.outputs.places import padded_targets
from learnscope.tensor.outputs.small_objective import (
    host_class_sums,
    host_token_sums,
    is_small,
    small_class_sums,
)

MOST = 2**22
"""Entries of the outputs that are looked at, of one call."""
NEAR = 0.004
"""How far a sum of probabilities may be off 1: they may have been rounded to bfloat16 before."""
SHIFTS = (-1, 0, 1, 2)
CLASS_NUMBERS = ("ignored", "out_of_range", "counted", "right", "finite", "probabilities", "logprobs", "over_batch")
"""The entries of `class_sums(…)["sums"]`: of all targets, of the rows that were looked at, and of their columns."""
ANSWER_NUMBERS = ("right", "finite", "within", "out_of_range", "twice")
TWICE = 1 / (1 + math.exp(-1.0))
"""The highest sigmoid of a sigmoid; the lowest is 1/2."""


def stride_for(outputs: Tensor) -> int:
    """Every how many rows are looked at."""
    return max(1, -(-outputs.numel() // MOST))


def as_rows(tensor: Tensor, stride: int = 1) -> Tensor:
    """(N, K) of a loss function's outputs, whose columns are its second dimension, as torch's losses have it.

    >>> as_rows(torch.zeros(2, 3, 4)).shape, as_rows(torch.zeros(5)).shape
    (torch.Size([8, 3]), torch.Size([5, 1]))
    """
    if tensor.ndim < 2:
        return tensor.reshape(-1, 1)[::stride]
    if tensor.ndim == 2:
        return tensor[::stride]
    return tensor.flatten(2)[:, :, ::stride].movedim(1, -1).flatten(0, 1)


def class_sums(outputs: Tensor, targets: Tensor, ignore_index: int, weight: Tensor | None = None) -> dict[str, Any]:
    """Sums of a call of cross_entropy or nll_loss, whose targets are classes, or a share of every class in each row.

    `sums` as in `CLASS_NUMBERS`; by class, `target_counts` of all counted targets and `predicted_counts` of the rows
    looked at, both with one entry more, of those that are no class; `mass`, what reduction="mean" divides by: the
    counted targets, or their weights. Arrays where all is in the memory of the host, else tensors.
    """
    if outputs.ndim == 1:
        outputs, targets = outputs[None], targets[None]
    classes, stride = outputs.shape[1], stride_for(outputs)
    rows, columns = as_rows(outputs, stride), over_the_batch_known(outputs, stride)
    if stride == 1 and (found := host_class_sums(rows, targets, ignore_index, weight, NEAR, columns=columns)):
        return found
    if is_small(outputs) and not targets.is_floating_point() and targets.is_cpu:
        return small_class_sums(rows, targets, ignore_index, weight, NEAR, columns=columns)
    if targets.is_floating_point():
        chosen, counts, ignored, improper = _soft_targets(targets, stride)
        mass = counts.new_tensor(outputs.numel() // classes)
    else:
        chosen, counts, ignored = _hard_targets(targets, classes, ignore_index, stride)
        improper = counts[classes] - ignored
        mass = counts[:classes].sum() if weight is None else (counts[:classes] * weight).sum()
    counted = chosen < classes
    highest, predicted = _highest(rows)
    finite = highest.isfinite()
    looks_at = (
        counted.sum(), ((predicted == chosen) & finite).sum(), finite.sum(), *_distributions(rows, highest),
        _over_the_batch(rows) if columns else ignored.new_zeros(()),
    )  # fmt: skip
    predictions = _counted(torch.where(counted & finite, predicted, classes), classes)
    sums = torch.stack((ignored, improper, *looks_at))
    return {"sums": sums, "target_counts": counts, "predicted_counts": predictions, "mass": mass}


def _highest(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The highest entry of each row, and its column."""
    if not rows.is_cpu or rows.dtype not in (torch.float32, torch.float64) or rows.is_neg() or not rows.numel():
        highest, predicted = rows.max(1)
        return highest, predicted
    predicted = torch.from_numpy(lent(rows).argmax(1))  # torch takes ten times as long on a CPU
    return rows.gather(1, predicted[:, None])[:, 0], predicted


def _hard_targets(targets: Tensor, classes: int, ignore_index: int, stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """The class of each row looked at (`classes`: none), counts of all by class, and how many are ignored."""
    every = targets.long()
    ignored = every == ignore_index
    in_range = (every >= 0) & (every < classes)
    if 0 <= ignore_index < classes:
        in_range = in_range & ~ignored
    chosen = torch.where(in_range, every, classes)
    counts = _counted(chosen.reshape(-1), classes)
    looked_at = chosen[::stride] if chosen.ndim < 2 else chosen.flatten(1)[:, ::stride].reshape(-1)
    return looked_at, counts, ignored.sum()


def _soft_targets(targets: Tensor, stride: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of targets that are shares of the classes in each row: its class is the one with the largest share.

    Also how many rows are no shares.
    """
    shares = as_rows(targets, stride).double()
    improper = (shares.amin(1) < 0) | ~((shares.sum(1) - 1).abs() <= NEAR)
    chosen, counts = shares.argmax(1), torch.cat([shares.sum(0), shares.new_zeros(1)])
    return chosen, counts, chosen.new_zeros(()), improper.sum()


def _counted(values: Tensor, most: int) -> Tensor:
    """How often each of 0…most stands in a vector."""
    if values.is_cpu:
        return torch.bincount(values, minlength=most + 1)
    # elsewhere bincount waits for the device to learn the largest
    return values.new_zeros(most + 1).scatter_add_(0, values, torch.ones_like(values))


def _distributions(rows: Tensor, highest: Tensor) -> tuple[Tensor, Tensor]:
    """How many rows are probabilities, and how many are logarithms of probabilities; of a single class, nothing."""
    wide = rows.float() if rows.element_size() < 4 else rows
    # a rounded logarithm is off by a share of |ln p|, whose mean is the entropy: ln K at most
    near = NEAR * max(1.0, math.log(rows.shape[1]))
    positive, low = wide.amin(1) >= 0, highest <= near
    if rows.is_cpu:  # few rows are left, most often none
        probabilities, logarithms = wide[positive].sum(1), wide[low].logsumexp(1)
        return ((probabilities - 1).abs() <= NEAR).sum(), (logarithms.abs() <= near).sum()
    probabilities, logarithms = (wide.sum(1) - 1).abs() <= NEAR, wide.logsumexp(1).abs() <= near
    return (positive & probabilities).sum(), (low & logarithms).sum()


def over_the_batch_known(outputs: Tensor, stride: int) -> bool:
    """Whether columns can be told from rows: one row an example, all of them, and not as many as there are classes."""
    return outputs.ndim == 2 and stride == 1 and 1 < outputs.shape[0] != outputs.shape[1]


def _over_the_batch(rows: Tensor) -> Tensor:
    """How many columns are probabilities over the examples of the batch, or the logarithms of such.

    Or probabilities over parts of it of one size, as the places of each sequence: then all columns add up to the same
    whole number, that of the parts, and rows do not add up to 1.
    """
    wide = rows.float() if rows.element_size() < 4 else rows
    near = NEAR * max(1.0, math.log(len(rows)))
    lowest, highest = wide.amin(0), wide.amax(0)  # aminmax takes ten times as long
    positive, low = lowest >= 0, highest <= near
    if rows.is_cpu and not bool((positive | low).any()):  # as of most logits
        return positive.sum()
    totals = wide.sum(0)
    parts = totals.round().clamp(min=1)
    whole = ((totals - parts).abs() <= NEAR * parts.sqrt()) & (2 * parts <= len(rows)) & (len(rows) % parts == 0)
    inside = highest.amax() <= 1 + NEAR
    of_parts = (whole & (parts == parts[0])).all() & inside & ((wide.sum(1) - 1).abs() > NEAR).any()
    probabilities = positive & (((totals - 1).abs() <= NEAR) | of_parts)
    return (probabilities | (low & (wide.logsumexp(0).abs() <= near))).sum()


def answer_sums(outputs: Tensor, targets: Tensor, *, logits: bool) -> dict[str, Tensor]:
    """Sums of a call of binary_cross_entropy (`logits`: with_logits), where each column is a yes/no answer.

    `sums` as in `ANSWER_NUMBERS`, over entries; by column, `target_sum`, how many targets and
    predictions are yes, `target_yes` and `predicted_yes`, and the predictions that are none, `no_answer`.
    """
    stride = stride_for(outputs)
    given, wanted = as_rows(outputs, stride), as_rows(targets, stride).double()
    yes, wanted_yes, nothing = given > (0.0 if logits else 0.5), wanted > 0.5, given.isnan()
    within = ((given >= 0) & (given <= 1)).sum()
    twice = ((given >= 0.5 - NEAR) & (given <= TWICE + NEAR)).sum()
    right, out_of_range = ((yes == wanted_yes) & ~nothing).sum(), (~((wanted >= 0) & (wanted <= 1))).sum()
    return {
        "sums": torch.stack((right, given.isfinite().sum(), within, out_of_range, twice)),
        "target_sum": wanted.sum(0),
        "target_yes": wanted_yes.sum(0),
        "predicted_yes": yes.sum(0),
        "no_answer": nothing.sum(0),
    }


def number_sums(outputs: Tensor, targets: Tensor, *, median: bool = False) -> dict[str, Tensor]:
    """Sums of a call of a loss of numbers, in float64, without those that are not finite.

    By column of the targets: `count`, `mean` and `squares`, Σ(t − mean)²; `outputs`: the same three of all outputs,
    with how many outputs and targets are not finite. `median`: also `deviation`, the mean |t − median of its column|.
    """
    stride = stride_for(outputs)
    given, wanted = as_rows(outputs, stride).double(), as_rows(targets, stride).double()
    finite = wanted.isfinite()
    count, mean, squares = _moments(wanted, finite, 0)
    sound = given.isfinite()
    outputs_count, outputs_mean, outputs_squares = _moments(given.reshape(-1), sound.reshape(-1), 0)
    lost = (given.numel() - sound.sum(), wanted.numel() - finite.sum())
    numbers = (outputs_count, outputs_mean, outputs_squares, *lost)
    found = {"count": count, "mean": mean, "squares": squares}
    found["outputs"] = torch.stack([number.double() for number in numbers])
    if median and wanted.numel():
        middle = torch.where(finite, wanted, math.nan).nanmedian(0).values
        found["deviation"] = torch.where(finite, (wanted - middle).abs(), 0.0).sum() / count.sum()
    return found


def sign_sums(targets: Tensor) -> dict[str, Tensor]:
    """[targets, those that are neither −1 nor 1, those that are −1]"""
    signs = targets.reshape(-1)
    counts = [torch.ones_like(signs), signs.abs() != 1, signs == -1]
    return {"signs": torch.stack([each.sum() for each in counts]).double()}


def triplet_sums(anchors: Tensor, near: Tensor, far: Tensor, margin: float) -> dict[str, Tensor]:
    """[triplets, those whose near one is nearer than the far one, the margin]"""
    a, p, n = (tensor.reshape(-1, tensor.shape[-1]).double() for tensor in (anchors, near, far))
    right = (a - p).square().sum(1) < (a - n).square().sum(1)
    numbers = torch.tensor([float(len(a)), 0.0, margin], dtype=torch.float64, device=right.device)
    numbers[1] = right.sum()
    return {"triplets": numbers}


def _moments(values: Tensor, chosen: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    count = chosen.sum(dim).double()
    mean = torch.where(chosen, values, 0.0).sum(dim) / count.clamp(min=1)
    return count, mean, torch.where(chosen, values - mean, 0.0).square().sum(dim)


def token_sums(tokens: Tensor, targets: Tensor, ignore_index: int, padding: int | None) -> Tensor | None:
    """How many targets equal the input token `shift` places on, of how many, for each of `SHIFTS`; then padding.

    `tokens` are (B, T), and `targets` those of the outputs at all T places, or at all but the last. The last pair is
    how many counted targets are of padding, as `padded_targets` finds it, of how many; after it, how many next tokens
    are ignored though counted ones come before and after them in their row, of how many targets. None if the shapes do
    not belong together.
    """
    batch, length = tokens.shape
    places = {batch * length: length, batch * (length - 1): length - 1}.get(targets.numel())
    if not places or targets.is_floating_point() or (targets.ndim > 1 and targets.shape != (batch, places)):
        return None
    wanted = targets.reshape(batch, places)
    if (pairs_found := host_token_sums(tokens, wanted, ignore_index, padding, SHIFTS)) is not None:
        return pairs_found
    counted = wanted != ignore_index
    pairs = []
    for shift in SHIFTS:
        first, last = max(0, -shift), min(places, length - shift)
        if last <= first:
            pairs += [counted.new_zeros((), dtype=torch.int64)] * 2
            continue
        equal = (wanted[:, first:last] == tokens[:, first + shift : last + shift]) & counted[:, first:last]
        pairs += [equal.sum(), counted[:, first:last].sum()]
    padded = padded_targets(tokens, wanted, counted, padding)
    pairs += [padded.sum(), counted.sum() if padding is not None else counted.sum() * padded.any()]
    after = tokens[:, 1 : places + 1]
    inner = ~counted & (counted.cumsum(1) > 0) & (counted.flip(1).cumsum(1).flip(1) > 0)
    # the text itself has this token there: prompts and answers that are masked have others
    pairs += [(inner[:, : after.shape[1]] & (after == ignore_index)).sum(), counted.sum() * 0 + wanted.numel()]
    return torch.stack(pairs).double().reshape(-1, 2)
