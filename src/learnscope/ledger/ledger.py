"""The ledger: the history of every example so far."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learnscope.ledger import at_once, files, table
from learnscope.ledger.batch import Batch, as_batch, repeats
from learnscope.ledger.columns import GRAND, OTHER, Columns, Rows
from learnscope.ledger.index import IdIndex, Sample, among, chosen_ids
from learnscope.ledger.presentation import add_scores, learn, vote
from learnscope.store.backend import Backend, FolderBackend, MemoryBackend

if TYPE_CHECKING:
    import pandas as pd


class Ledger:
    """Streaming statistics of every example over its presentations, in a fixed number of bytes per example.

    A presentation is one time that the loop trained on the example. An id that comes twice, in a batch or in an
    epoch (sampling with replacement, the padding of a distributed sampler), was trained on twice: both count, in
    order. For passes over the data without training, `once_an_epoch` leaves the second one out.

    >>> ledger = Ledger()
    >>> for epoch, correct in enumerate([[False, True], [True, False], [True, False]]):
    ...     ledger.update([7, 9], p_gold=[0.5, 0.25], correct=correct, margin=[1, -1], loss=[1, 2], el2n=[1, 1],
    ...                   epoch=epoch)
    >>> print(ledger.frame()[["id", "forgetting_events", "first_learned", "cumulative_loss"]].to_string(index=False))
    id  forgetting_events  first_learned  cumulative_loss
     7                  0              2              3.0
     9                  1           <NA>              6.0

    Args:
        track: how many examples to track at most; None for all.
        sample, examples, seed: which ones: the `first` distinct ids, or an `even` or `random` choice of 0..examples−1.
        check_ids: refuse ids that come again with another target or input (`IdError`).
        once_an_epoch: count only an example's first presentation in an epoch.
    """

    def __init__(
        self,
        *,
        track: int | None = None,
        sample: Sample = "first",
        examples: int | None = None,
        seed: int = 0,
        check_ids: bool = True,
        once_an_epoch: bool = False,
    ) -> None:
        self._chosen = chosen_ids(track, sample, examples, seed)
        self._settings: dict[str, Any] = {
            "track": track, "sample": sample, "examples": examples, "seed": seed, "check_ids": check_ids,
            "once_an_epoch": once_an_epoch,
        }  # fmt: skip
        self._columns = Columns()
        self._index = IdIndex(self._columns.ids_at)
        self.untracked = 0
        """Presentations of examples that are not tracked."""
        self.repeated = 0
        """Presentations left out by `once_an_epoch`."""

    def __len__(self) -> int:
        return self._columns.size

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays and the index."""
        return self._columns.nbytes + self._index.nbytes

    def update(
        self,
        ids: ArrayLike,
        *,
        p_gold: ArrayLike,
        correct: ArrayLike,
        margin: ArrayLike,
        loss: ArrayLike,
        el2n: ArrayLike,
        epoch: int,
        grand: ArrayLike | None = None,
        target: ArrayLike | None = None,
        predicted: ArrayLike | None = None,
        checksum: ArrayLike | None = None,
    ) -> None:
        """One presentation of each example of a batch; a batch that is refused changes nothing.

        Args:
            ids: whole numbers.
            p_gold: probability of the right answer.
            correct: whether the prediction was right.
            margin: gold logit minus the best other.
            el2n: ‖p − onehot(y)‖₂.
            grand: gradient norms, where they were computed; NaN for an example without.
            target: the class, or an integer that stands for the target: it reveals reused ids.
            predicted: the class that was predicted in place of the target; negative where it was right or is unknown.
            checksum: a number that stands for the input, for the same purpose; not for augmented inputs.
        """
        batch = as_batch(
            ids, epoch, correct, target, predicted, p_gold=p_gold, margin=margin, loss=loss, el2n=el2n, grand=grand,
            checksum=checksum,
        )  # fmt: skip
        self.add(batch)

    def add(self, batch: Batch) -> None:
        """The same of a batch that is checked already."""
        tracked = batch if self._chosen is None else batch.where(among(batch.ids, self._chosen))
        (rows, known), changed = self._as_before(tracked), []
        if rows is None:
            rows = self._find(tracked)
            changed = self._check(tracked, rows, again=repeats(tracked.ids))
            if (rows < 0).any():
                tracked = tracked.where(self._make_room(tracked.ids, rows, batch.epoch))
                rows = self._find(tracked)
        self.untracked += len(batch.ids) - len(tracked.ids)
        if len(tracked.ids):
            self._present(tracked, rows, changed, known)

    def summary(self) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """Numbers over all examples, and quantiles of their scores; see `learnscope.ledger.table.summary`."""
        return at_once.summary(self._columns) or table.summary(self._columns.used())

    def frame(self) -> pd.DataFrame:
        """One row per example, in the order of their ids; see `learnscope.ledger.table.frame`."""
        return table.frame(self.arrays())

    def arrays(self, *, by_id: bool = True) -> dict[str, NDArray[Any]]:
        """All columns, in the order of the ids or (`by_id=False`) of arrival; NaN for what was not measured."""
        ids = self._columns["id"][: len(self)]
        order = np.argsort(ids, kind="stable") if by_id else np.arange(len(self))
        return table.with_unmeasured(self._columns.ordered(order), np.nan)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], **settings: Any) -> Ledger:
        """The ledger that `arrays()` came from; `settings` are those of the constructor."""
        ledger = cls(**settings)
        ledger._columns.fill(table.with_unmeasured(table.checked(arrays), 0.0))
        ledger._index.add(ledger._columns["id"])
        return ledger

    def emptied(self) -> Ledger:
        """A ledger with the same settings and no example."""
        return Ledger(**self._settings)

    def trim(self) -> None:
        """Free spare memory, when no more examples are expected."""
        self._columns.trim()

    def save(self, path: str | Path) -> None:
        """Write the ledger atomically: Parquet, or safetensors where pyarrow is not installed.

        Any file name is allowed; the file is never a pickle.
        """
        files.write(Path(path), self.arrays(), self._facts())

    def _facts(self) -> dict[str, Any]:
        return {"settings": self._settings, "untracked": self.untracked, "repeated": self.repeated}

    def save_in(self, folder: str | Path) -> None:
        """Write `examples.parquet` into a folder, or `examples.safetensors` where pyarrow is not installed."""
        name, other = files.NAMES if files.has_parquet() else files.NAMES[::-1]
        # written many times during a run, like its records: atomic, but without fsync
        files.write(Path(folder) / name, self.arrays(), self._facts(), durable=False)
        (Path(folder) / other).unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> Ledger:
        """The ledger exactly as it was saved; it can be continued."""
        arrays, facts = files.read(Path(path))
        ledger = cls.from_arrays(arrays, **facts["settings"])
        ledger.untracked, ledger.repeated = facts["untracked"], facts["repeated"]
        return ledger

    def _make_room(self, ids: NDArray[np.int64], rows: NDArray[np.int64], epoch: int) -> NDArray[np.bool_]:
        """Add rows for ids that are new in `epoch`, up to the limit; returns which of all ids are tracked."""
        distinct, first = np.unique(ids[rows < 0], return_index=True)
        new = distinct[np.argsort(first)]  # in the order of arrival
        track = self._settings["track"]
        if track is not None:
            new = new[: max(track - len(self), 0)]
        start = len(self)
        self._columns.grow(start + len(new))
        self._columns["id"][start : start + len(new)] = new
        self._index.add(new)
        self._columns["first_epoch"][start : start + len(new)] = epoch
        tracked: NDArray[np.bool_] = self._index.find(ids) >= 0
        return tracked

    def _find(self, batch: Batch) -> NDArray[np.int64]:
        """The row of each example, -1 for an unknown one."""
        found = at_once.find(self._index, self._columns, batch)
        return self._index.find(batch.ids) if found is None else found[0]

    def _as_before(self, batch: Batch) -> tuple[NDArray[np.int64] | None, Rows | None]:
        """Where the rows of a batch are in which every id is known and has the target and input it had, and, without
        kernels, copies of them; None for any other batch."""
        found = at_once.find(self._index, self._columns, batch)
        if found is not None:
            return found[0] if found[1] else None, None
        rows = self._index.guess(batch.ids)
        if not len(self):
            return None, None
        known = self._columns.take(rows)
        same = known["id"] == batch.ids
        same &= rows >= 0  # an unknown one reads spare room
        for name, values in (("target", batch.target), ("checksum", batch.checksum)):
            if values is not None:
                same &= known[name] == values
        return (rows, known) if np.logical_and.reduce(same) else (None, None)

    def _check(self, batch: Batch, rows: NDArray[np.int64], *, again: bool) -> list[str]:
        """Refuse ids that had another target or input; which of these are to be written."""
        names = [name for name in ("target", "checksum") if getattr(batch, name) is not None]
        if self._settings["check_ids"]:
            if again:
                batch.check_itself()
            known, columns = rows >= 0, self._columns
            before = {name: columns[name][rows[known]] for name in names if name in columns}
            batch.where(known).check_same(before.get("target"), before.get("checksum"))
        return names

    def _present(self, batch: Batch, rows: NDArray[np.int64], changed: list[str], known: Rows | None) -> None:
        """One presentation of examples, which may come twice, at these rows."""
        once = self._settings["once_an_epoch"]
        self._columns.need(*changed)
        repeated = at_once.present(self._columns, batch, rows, write=bool(changed), once=once)
        if repeated is not None:
            self.repeated += repeated
        elif not repeats(rows):
            self._apply(batch, rows, changed, known)
        else:
            for part, at in batch.in_turn(rows):
                self._apply(part, at, changed)

    def _apply(self, batch: Batch, at: NDArray[np.int64], changed: list[str], rows: Rows | None = None) -> None:
        """One presentation of distinct examples, at these rows, of which there may be copies already."""
        columns = self._columns
        if self._settings["once_an_epoch"]:
            again = (columns["presentations"][at] > 0) & (columns["last_epoch"][at] == batch.epoch)
            self.repeated += int(again.sum())
            at, batch, rows = at[~again], batch.where(~again), None
        if batch.grand is not None:
            self._add_grand(at, batch.grand)
        if batch.predicted is not None:
            columns.need(*OTHER)
            vote(columns[OTHER[0]], columns[OTHER[1]], at, batch.predicted)
        rows = columns.take(at) if rows is None else rows
        for name in changed:
            rows[name] = getattr(batch, name)
        rows["presentations"] += 1
        learn(rows, batch.correct, batch.epoch)
        if (finite := batch.finite()) is None:
            add_scores(rows, rows["presentations"] - rows["nonfinite"], batch)
        else:
            rows["nonfinite"] += ~finite
            measured = rows[finite]
            add_scores(measured, measured["presentations"] - measured["nonfinite"], batch.where(finite))
            rows[finite] = measured
        columns.put(at, rows)

    def _add_grand(self, at: NDArray[np.int64], grand: NDArray[np.float64]) -> None:
        columns = self._columns
        columns.need(*GRAND, "grand_count")
        measured = np.isfinite(grand)
        rows, values = at[measured], grand[measured]
        columns["grand_count"][rows] += 1
        before = columns["grand_mean"][rows]
        columns["grand_mean"][rows] = before + (values - before) / columns["grand_count"][rows]
        columns["grand_last"][rows] = values


def ledger_of(backend: Backend) -> Ledger | None:
    """The ledger of a run as it was last stored; None if no examples were tracked."""
    if isinstance(backend, FolderBackend):
        paths = [path for name in files.NAMES if (path := backend.path / name).exists()]
        return Ledger.load(paths[0]) if paths else None
    arrays = backend.examples if isinstance(backend, MemoryBackend) else None
    return None if arrays is None else Ledger.from_arrays(arrays)
