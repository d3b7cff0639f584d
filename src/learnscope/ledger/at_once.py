"""A whole batch at once, by the kernels: where its rows are, and what it changes in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope import native
from learnscope.ledger.batch import Batch
from learnscope.ledger.columns import OTHER, Columns
from learnscope.ledger.index import IdIndex
from learnscope.ledger.table import SCORES, TOGETHER, all_scored, counted

Places = NDArray[np.int64]


def find(index: IdIndex, columns: Columns, batch: Batch) -> tuple[Places, bool] | None:
    """The row of each id, -1 for an unknown one, and whether all are known, with the target and input they had.

    None where there are no kernels.
    """
    kernels = native.kernels
    if kernels is None:
        return None
    at = np.empty(len(batch.ids), dtype=np.int64)
    target, checksum = _plain(batch.target), _plain(batch.checksum)
    ids = _plain(batch.ids)
    return at, kernels.ledger_find(index.slots, index.is_hashed, columns.rows, columns.size, ids, target, checksum, at)


def present(columns: Columns, batch: Batch, at: Places, *, write: bool, once: bool) -> int | None:
    """One presentation of each example, which may come twice; how many `once` an epoch left out.

    With `write`, targets and checksums are written. None, and nothing is changed, where there are no kernels, and for
    gradient norms.
    """
    kernels: Any = native.kernels
    if kernels is None or batch.grand is not None:
        return None
    written: list[Any] = [_plain(batch.target), _plain(batch.checksum)] if write else [None, None]
    predicted, other = _plain(batch.predicted), list[Any]([None, None])
    if predicted is not None:
        columns.need(*OTHER)
        other = [columns[name] for name in OTHER]
    scores = [_plain(each) for each in (batch.p_gold, batch.margin, batch.loss, batch.el2n, batch.correct)]
    repeated: int = kernels.ledger_present(columns.rows, at, *scores, *written, predicted, *other, batch.epoch, once)
    return repeated


def summary(columns: Columns) -> tuple[dict[str, Any], dict[str, list[float]]] | None:
    """As `table.summary`; None where there are no kernels, or no examples, or so many that their scores take room."""
    kernels, size = native.kernels, columns.size
    if kernels is None or not 0 < size <= TOGETHER:
        return None
    counts, scores = np.empty(6, dtype=np.int64), np.empty((len(SCORES), size))
    measured = kernels.ledger_totals(columns.rows, size, counts, scores)
    means, quantiles = all_scored(scores[:, :measured])
    return counted(size, *counts.tolist()) | means, quantiles


def _plain(values: NDArray[Any] | None) -> Any:
    """As kernels read it: without gaps, and not at an odd address, as in a file's bytes or a packed record."""
    if values is None:
        return None
    held = np.ascontiguousarray(values)
    return held if held.flags.aligned else held.copy()
