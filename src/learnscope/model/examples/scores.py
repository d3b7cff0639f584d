"""Scores of every example in a batch, from the logits that the training loop has computed anyway."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.task.shapes import IGNORE, flatten_positions, is_single, predictions
from learnscope.tensor.examples.at_once import host_scores
from learnscope.tensor.hashing import as_float, mixed
from learnscope.tensor.host import lent

WIDE = 2**22
"""Up to this many logits everything is computed in float64; above that in the logits' precision, at least float32."""
FEW = 64
"""Classes up to which they come first in memory: sums over them take a quarter of the time then."""
SOME = 2**20
"""Logits up to which one thread is enough."""
FAR = 80.0
"""How far below the largest logit exp is still exact in float32."""
CHUNK = 2**22
"""Logits processed together, so that they are not all copied at once."""
_Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExampleScores:
    """One entry per example. An example without a position that counts has NaN scores and `positions` 0."""

    p_gold: NDArray[np.float64]
    """Probability of the target."""
    margin: NDArray[np.float64]
    """Gold logit minus the best other."""
    loss: NDArray[np.float64]
    el2n: NDArray[np.float64]
    """‖p − onehot(y)‖₂ over the classes; √2·|p − y| for a single logit."""
    correct: NDArray[np.bool_]
    """Whether more than half of its positions are predicted correctly."""
    positions: NDArray[np.int64]
    target: NDArray[np.int64]
    """The class; for several positions a hash of their targets."""
    predicted: NDArray[np.int64]
    """The class that was predicted in place of the target; -1 where that was right, or there are several positions."""

    def where(self, keep: NDArray[np.bool_]) -> ExampleScores:
        """The scores of the examples that a mask keeps."""
        return ExampleScores(*(getattr(self, field.name)[keep] for field in fields(self)))


@torch.no_grad()
def example_scores(logits: Tensor, targets: Tensor) -> ExampleScores:
    """Scores of each example; with several positions (a language model's), means over those that count.

    Args:
        logits: [N, C], [N] or [N, 1] for a yes/no answer, [N, T, C] for sequences.
        targets: integers, aligned with the logits: those of a causal model are already shifted. `IGNORE` does not
            count.

    One host sync.
    """
    check_classes(logits, targets)
    if logits.device.type == "mps":  # which has no float64
        logits, targets = logits.cpu(), targets.cpu()
    count, example = logits.shape[0], None
    if logits.ndim == 2 and targets.shape == logits.shape[:1] and not is_single(logits):
        logits, aligned = logits.detach(), targets.to(logits.device).long()  # already one row per position
        if logits.is_cpu and len(aligned) and logits.numel() <= SOME:
            found = host_scores(logits, aligned)
            scores = _of_few(logits, aligned) if found is None else _of_kernel(*found, lent(aligned))
            if scores is not None:
                return scores
        keep = aligned != IGNORE
    else:
        logits, flat, counted, example = flatten_positions(logits.detach(), targets.to(logits.device), None)
        assert flat is not None, "targets were given"
        assert counted is not None, "integer targets say which count"
        aligned, keep = flat, counted
    if len(logits) == 0:
        return _on_host(torch.zeros(9, count, dtype=torch.float64))
    if is_single(logits):  # the logit of 1 beside that of 0
        logits = torch.stack([torch.zeros_like(logits.reshape(-1)), logits.reshape(-1)], 1)
    rows = _scored(logits, aligned, keep)
    if example is not None and len(keep) != count:
        rows = rows.new_zeros(len(rows), count).index_add_(1, example.to(rows.device), rows)
        # a hash of the targets of each example, which does not depend on padding between them
        summed = torch.zeros(count, dtype=torch.int64, device=aligned.device)
        rows[8] = -1  # a sum of classes is none
        rows[6] = as_float(summed.index_add_(0, example.to(aligned.device), torch.where(keep, mixed(aligned), 0)))
    return _on_host(rows)


def check_classes(logits: Tensor, targets: Tensor) -> None:
    """Refuse targets that are not classes."""
    if targets.is_floating_point() or targets.is_complex():
        raise TypeError(
            "float targets are regression: there is no gold class to be confident of. Classes are whole numbers: "
            "targets.long(), or targets.argmax(-1) of one-hot ones"
        )
    if targets.shape != logits.shape or targets.ndim < 2 or targets.shape[-1] < 2 or not targets.numel():
        return
    if bool(((targets == 0) | (targets == 1)).all() & (targets.sum(-1) == 1).all()):
        raise ValueError(
            f"targets of shape {list(targets.shape)} look one-hot: pass the classes, targets.argmax(-1). "
            "(For one yes/no answer a position, give the logits a last dimension of 1.)"
        )


def _scored(logits: Tensor, targets: Tensor, keep: Tensor) -> Tensor:
    """[9, P]: p, margin, loss, EL2N, correct, counted, target, out of range, predicted instead; 0 where none counts."""
    gold = targets.clamp(0, logits.shape[-1] - 1)
    wide = logits.numel() <= WIDE or logits.dtype == torch.float64
    rows = torch.empty(9, len(targets), dtype=torch.float64, device=logits.device)
    size = max(1, CHUNK // logits.shape[-1])
    for start in range(0, len(targets), size):
        part = slice(start, start + size)
        for row, values in enumerate(_five(logits[part], gold[part], wide)):
            rows[row, part] = values
    rows[5], rows[6], rows[7] = keep, targets, targets != gold
    rows[8] = _instead(logits, rows[4].bool())
    return torch.where(keep, rows, 0)


def _five(logits: Tensor, gold: Tensor, wide: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """p, margin, loss, EL2N and correctness of every row."""
    dim = 0 if logits.shape[1] <= FEW else 1
    z = logits.t() if dim == 0 else logits
    # a copy, in which the gold entry makes room for the others' greatest
    z = torch.empty(z.shape, dtype=torch.float64 if wide else torch.float32, device=z.device).copy_(z)
    column = gold.unsqueeze(dim)
    at_gold = z.gather(dim, column).squeeze_(dim)
    best = z.scatter_(dim, column, -torch.inf).amax(dim)
    top = torch.maximum(at_gold, best)
    # without the gold entry, so that 1 − p is a sum of small numbers, not a difference of large ones
    others = z.sub_(top.unsqueeze(dim)).exp_()
    below = top - at_gold
    gold_exp, small = below.neg().exp_(), others.sum(dim)
    total = small + gold_exp
    loss = (small / gold_exp).log1p_()  # −log p = log(1 + small/gold), exact even if tiny
    far = below > FAR
    if not loss.is_cpu or bool(far.any()):  # gold underflows, or nearly does
        loss = torch.where(far, below + total.log(), loss)
    el2n = others.square_().sum(dim).addcmul_(small, small).sqrt_().div_(total)
    return gold_exp / total, at_gold - best, loss, el2n, _right(logits, gold, at_gold, best)


def _of_kernel(
    scores: _Numbers, right: NDArray[np.bool_], predicted: NDArray[np.int64], targets: NDArray[np.int64]
) -> ExampleScores:
    counts = np.ones(len(targets), dtype=np.int64)
    return ExampleScores(scores[0], scores[1], scores[2], scores[3], right, counts, targets, predicted)


def _of_few(logits: Tensor, targets: Tensor) -> ExampleScores | None:
    """The same by NumPy for not too many rows that all count: it starts a small operation in half of torch's time."""
    classes = logits.shape[1]
    if classes > FEW:
        return None
    z: NDArray[np.float64] = torch.empty(classes, len(targets), dtype=torch.float64).copy_(logits.t()).numpy()
    gold = lent(targets)
    if gold.min() < 0 or gold.max() >= classes:
        return None
    places = gold * len(gold) + np.arange(len(gold))
    at_gold = z.take(places)
    z.put(places, -np.inf)
    best = z.max(0)
    right = at_gold > best
    tied = at_gold == best
    if tied.any():  # as `predictions` decides
        right[tied] = (predictions(logits[torch.from_numpy(tied)]) == targets[torch.from_numpy(tied)]).numpy()
    predicted, (wrong,) = np.full(len(gold), -1), (~right).nonzero()
    if len(wrong):
        predicted[wrong] = np.where(np.isnan(at_gold[wrong]) | np.isnan(best[wrong]), -1, z[:, wrong].argmax(0))
    with np.errstate(all="ignore"):  # what is not finite is counted, and left out of means
        p, loss, el2n = _softmax(z, at_gold, np.maximum(at_gold, best))
        margin = at_gold - best
    return ExampleScores(p, margin, loss, el2n, right, np.ones(len(gold), dtype=np.int64), gold, predicted)


def _softmax(z: _Numbers, at_gold: _Numbers, top: _Numbers) -> tuple[_Numbers, _Numbers, _Numbers]:
    """p, loss and EL2N, as `_five` computes them; `z` is [C, N], without its gold entries, and is overwritten."""
    z -= top
    np.exp(z, out=z)
    below = top - at_gold
    gold_exp, small = np.exp(-below), z.sum(0)
    total = small + gold_exp
    loss = np.log1p(small / gold_exp)
    far = below > FAR
    if far.any():
        loss = np.where(far, below + np.log(total), loss)
    z *= z
    el2n = z.sum(0)
    el2n += small * small
    np.sqrt(el2n, out=el2n)
    el2n /= total
    return gold_exp / total, loss, el2n


def _right(logits: Tensor, gold: Tensor, at_gold: Tensor, best: Tensor) -> Tensor:
    """Whether the prediction is the gold class, with ties as in `predictions`."""
    if not logits.is_cpu:
        return predictions(logits) == gold
    right = at_gold > best  # several times as fast as an argmax, which only ties need
    tied = at_gold == best
    if bool(tied.any()):
        right[tied] = predictions(logits[tied]) == gold[tied]
    return right


def _instead(logits: Tensor, right: Tensor) -> Tensor:
    """The predicted class where it is not the gold one, else -1."""
    if not logits.is_cpu:  # without a wait
        return torch.where(right, -1, predictions(logits))
    instead = torch.full((len(right),), -1)
    instead[~right] = predictions(logits[~right]).long()
    return instead


def _on_host(rows: Tensor) -> ExampleScores:
    p, margin, loss, el2n, right, positions, target, outside, instead = rows.cpu().numpy()
    if outside.any():
        raise ValueError(
            f"targets that are none of the logits' classes were seen, in {int((outside > 0).sum())} of "
            f"{len(outside)} examples: classes are counted from 0, one per logit, and {IGNORE} leaves a target out"
        )
    if not (positions == 1).all():
        with np.errstate(invalid="ignore"):  # 0/0 for an example without a position is NaN: it was not measured
            p, margin, loss, el2n = (values / positions for values in (p, margin, loss, el2n))
    counts = positions.astype(np.int64)
    return ExampleScores(
        p, margin, loss, el2n, 2 * right > positions, counts, target.astype(np.int64), instead.astype(np.int64)
    )
