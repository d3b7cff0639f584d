"""A batch for the ledger: checked, and split if an id comes more than once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learnscope.store.backend import RunError

UNKNOWN_TARGET = int(np.iinfo(np.int64).min)


class LedgerError(RunError, ValueError):
    """A batch or a file that a ledger refuses; the message says why."""


class IdError(LedgerError):
    """An id was used for different examples, so that its statistics would be meaningless."""


def reused(what: str, ids: list[int]) -> IdError:
    """The error for ids that came again with another `what`."""
    shown = ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")
    return IdError(
        f"{len(ids)} of the batch's ids came with another {what} than before (ids {shown}): an id must always name the "
        "same example, and a position in a shuffled loader does not. Wrap the data set in learnscope.IndexedDataset, "
        f"which gives every item its own index. If the {what}s of an example change on purpose"
        f"{', as augmented ones do, check_inputs=False.' if what == 'input' else ', check_ids=False.'}"
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Scores of examples, aligned; None for what was not given."""

    ids: NDArray[np.int64]
    epoch: int
    p_gold: NDArray[np.float64]
    margin: NDArray[np.float64]
    loss: NDArray[np.float64]
    el2n: NDArray[np.float64]
    correct: NDArray[np.bool_]
    grand: NDArray[np.float64] | None
    checksum: NDArray[np.float64] | None
    target: NDArray[np.int64] | None
    predicted: NDArray[np.int64] | None

    def where(self, keep: NDArray[Any]) -> Batch:
        """The examples that a mask or an index array selects."""
        if keep.dtype == np.bool_ and keep.all():
            return self
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Batch(**{k: v[keep] if isinstance(v, np.ndarray) else v for k, v in values.items()})

    def finite(self) -> NDArray[np.bool_] | None:
        """Where all four scores are finite; None if they are everywhere."""
        return finite(self.p_gold, self.margin, self.loss, self.el2n)

    def in_turn(self, rows: NDArray[np.int64]) -> Iterator[tuple[Batch, NDArray[np.int64]]]:
        """Parts without a repeated id, with their rows: first presentations, second presentations, …"""
        order = np.argsort(self.ids, kind="stable")
        same = self.ids[order][1:] == self.ids[order][:-1]
        starts = np.flatnonzero(np.r_[True, ~same])
        turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
        for number in range(int(turn.max()) + 1):
            part = np.sort(order[turn == number])
            yield self.where(part), rows[part]

    def check_itself(self) -> None:
        """Refuse an id that has two targets or inputs within this batch."""
        order = np.argsort(self.ids, kind="stable")
        same = self.ids[order][1:] == self.ids[order][:-1]
        earlier = self.where(order[:-1][same])
        self.where(order[1:][same]).check_same(earlier.target, earlier.checksum)

    def check_same(self, target: NDArray[Any] | None, checksum: NDArray[Any] | None) -> None:
        """Refuse ids that had another target or input, where both are known."""
        if self.target is not None and target is not None:
            differ = (target != self.target) & (target != UNKNOWN_TARGET) & (self.target != UNKNOWN_TARGET)
            if differ.any():
                raise reused("target", self.ids[differ].tolist())
        if self.checksum is not None and checksum is not None:
            differ = (checksum != self.checksum) & ~np.isnan(checksum) & ~np.isnan(self.checksum)
            if differ.any():
                raise reused("input", self.ids[differ].tolist())


def repeats(numbers: NDArray[Any]) -> bool:
    """Whether a number comes more than once."""
    if not len(numbers):
        return False
    low, high = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
    if high - low < 8 * len(numbers):  # counting is faster than sorting
        return bool(np.maximum.reduce(np.bincount(numbers - low)) > 1)
    ordered = np.sort(numbers)
    return bool(np.logical_or.reduce(ordered[1:] == ordered[:-1]))


def finite(*scores: NDArray[np.float64]) -> NDArray[np.bool_] | None:
    """Where all of these are finite; None if they are everywhere, as is usual."""
    with np.errstate(all="ignore"):
        totals = [np.add.reduce(values) for values in scores]
    if all(map(math.isfinite, totals)):  # a sum is finite only if all its terms are
        return None
    where = np.isfinite(scores[0])
    for values in scores[1:]:
        where &= np.isfinite(values)
    return None if where.all() else where


def as_batch(
    ids: ArrayLike, epoch: int, correct: ArrayLike, target: ArrayLike | None, predicted: ArrayLike | None, **scores: Any
) -> Batch:
    """The arrays with their dtypes, or an error that names the one that does not fit."""
    id_array = _integers("ids", ids)
    if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or not 0 <= epoch < 2**31:
        raise LedgerError(f"epoch={epoch!r}: a whole number from 0")
    is_correct = np.asarray(correct)
    if is_correct.dtype != np.bool_:
        raise LedgerError(f"correct is {is_correct.dtype}: pass booleans")
    arrays: dict[str, Any] = {k: None if v is None else np.asarray(v, dtype=np.float64) for k, v in scores.items()}
    arrays |= {"correct": is_correct, "target": None if target is None else _integers("target", target)}
    arrays["predicted"] = None if predicted is None else _integers("predicted", predicted)
    for name, array in arrays.items():
        if array is not None and array.shape != id_array.shape:
            raise LedgerError(
                f"{name} has shape {array.shape}, not {id_array.shape} as ids: give one entry per example"
            )
    return Batch(ids=id_array, epoch=int(epoch), **arrays)


def _integers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise LedgerError(f"{name} has shape {array.shape}: one whole number per example is needed")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and int(array.max()) >= 2**63):
        raise LedgerError(f"{name} is {array.dtype}: whole numbers that fit 64 bits (number the examples)")
    return array.astype(np.int64, copy=False)
