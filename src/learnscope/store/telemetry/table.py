"""Telemetry as a table: one row per collection, one column per number."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from learnscope.store.backend import RunError
from learnscope.store.telemetry.chunks import (
    ARRAYS,
    BATCH,
    EPOCH,
    STATUS,
    STEP,
    TIME,
    Chunk,
    Path,
    Values,
    by_json,
    objects,
)

if TYPE_CHECKING:
    import pandas as pd

FILE = "telemetry.jsonl"
FAST_FROM = 2 << 20
"""Bytes from which on pyarrow, if it is installed, saves more time than importing it takes."""
CHUNK = 16 << 20
"""Bytes read at a time: a damaged line slows down only its own piece."""
NAMED = 10
"""Lines that a warning lists."""


def read_telemetry(path: str | os.PathLike[str], *, logits: bool = False, superseded: bool = True) -> pd.DataFrame:
    """A telemetry file, or the folder that holds one, as a DataFrame with a row for every collection.

    Columns are `batch_idx`, `epoch`, `global_step`, `timestamp`, then `gradient_norm.overall` and so on: sections in
    the order in which they appear, each with its numbers. What was not measured is NaN, and `status`, the last
    column, is a dictionary that says why, or None. The file may be read while it is being written.

    Args:
        path: `telemetry.jsonl`, or its folder.
        logits: also give `holdout_logits.logits`, `.labels` and `.predictions`, a NumPy array in each row.
        superseded: False leaves out what was collected past the step from which a later attempt resumed.

    Torn or damaged lines, which a kill may leave, are left out with a warning. Times with an offset are converted to
    UTC, others stay as they were written.

    In files without `global_step` it is computed from `batch_idx`, which starts again with every epoch: counting goes
    on from the step before, as if the collection before had been of the epoch's last batch. How many batches followed
    it is not in the file, so these steps are the smallest possible; they never decrease.
    """
    file = _file(pathlib.Path(path))
    chunks = list(_chunks(file, logits))
    problems = [problem for chunk in chunks for problem in chunk.problems]
    if problems:
        warnings.warn(_damage(file, problems), stacklevel=2)
    frame = _frame(chunks, logits)
    return frame if superseded else frame[last_attempts(frame["global_step"].to_numpy())].reset_index(drop=True)


def last_attempts(steps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose step is below that of every later row: within an attempt steps only increase."""
    later = np.minimum.accumulate(steps[::-1])[::-1]  # the smallest step from each row on
    kept = np.ones(len(steps), dtype=np.bool_)
    kept[:-1] = steps[:-1] < later[1:]
    return kept


def _file(path: pathlib.Path) -> pathlib.Path:
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise RunError(f"{file} is not there. Name a {FILE} or the folder that holds it, the telemetry's output_dir.")
    return file


def _chunks(file: pathlib.Path, logits: bool) -> Iterator[Chunk]:
    fast = file.stat().st_size >= FAST_FROM and find_spec("pyarrow") is not None
    line = 1
    with file.open("rb") as opened:
        while data := opened.read(CHUNK):
            if not data.endswith(b"\n"):
                data += opened.readline()
            chunk = None
            if fast:
                from learnscope.store.telemetry.arrow import by_arrow

                chunk = by_arrow(data, logits)
            yield by_json(data, line, logits) if chunk is None else chunk
            line += data.count(b"\n")


def _damage(file: pathlib.Path, problems: Sequence[tuple[int, str]]) -> str:
    named = "; ".join(f"line {number}: {reason}" for number, reason in problems[:NAMED])
    more = f"; and {len(problems) - NAMED:,} more" if len(problems) > NAMED else ""
    return f"torn or damaged lines of {file} were skipped: {named}{more}"


def _frame(chunks: Sequence[Chunk], logits: bool) -> pd.DataFrame:
    import pandas as pd

    columns = _joined(chunks)
    batch, epoch = (columns.pop(path, np.empty(0, np.int64)) for path in (BATCH, EPOCH))
    rows = len(batch)
    given = columns.pop(STEP, np.full(rows, np.nan))
    when = columns.pop(TIME, np.full(rows, np.datetime64("NaT"), "datetime64[us]"))
    status = columns.pop(STATUS, np.full(rows, None, dtype=object))
    named: dict[str, Values] = {
        BATCH[0]: batch, EPOCH[0]: epoch, STEP[0]: global_steps(batch, epoch, given), TIME[0]: when,
    }  # fmt: skip
    named |= {".".join(path): columns[path] for path in columns if logits or path not in ARRAYS}
    named[STATUS[0]] = status
    # otherwise pandas would turn objects that are all strings into its text type
    kept = {name: pd.Series(values, dtype=values.dtype) for name, values in named.items()}
    return pd.DataFrame(kept, columns=list(kept))


def _joined(chunks: Sequence[Chunk]) -> dict[Path, Values]:
    """The columns of all pieces, grouped by section, in the order of appearance."""
    import pandas as pd

    filled = [chunk for chunk in chunks if chunk.rows]
    nodes: dict[Path, bool] = {}
    for chunk in filled:
        for path, is_object in chunk.nodes.items():
            nodes[path] = nodes.get(path, False) or is_object
    rank = {path: place for place, path in enumerate(nodes)}
    paths = dict.fromkeys(path for chunk in filled for path in chunk.columns)
    joined = {}
    for path in sorted(paths, key=lambda path: [rank[path[: n + 1]] for n in range(len(path))]):
        values = _joined_column(path, [chunk.columns.get(path, np.full(chunk.rows, np.nan)) for chunk in filled])
        # a section that is null in some rows is no column of numbers that were never measured
        if not (nodes[path] and pd.isna(values).all()):
            joined[path] = values
    return joined


def _joined_column(path: Path, parts: Sequence[Values]) -> Values:
    """One column; NaN where a piece does not have it."""
    kinds = {part.dtype.kind for part in parts}
    if path in ARRAYS:
        return _same_arrays(np.concatenate([objects(part.tolist()) for part in parts]), whole=path[1] != "logits")
    if "O" in kinds and kinds != {"O"}:
        parts = [part if part.dtype.kind == "O" else objects(part.tolist()) for part in parts]
    if "M" in kinds and kinds != {"M"}:
        parts = [part if part.dtype.kind == "M" else part.astype("datetime64[us]") for part in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _same_arrays(column: Values, whole: bool) -> Values:
    """Arrays of integers if all of them are, otherwise of floats; empty arrays do not decide."""
    arrays = [value for value in column if isinstance(value, np.ndarray)]
    whole = whole and all(value.dtype.kind == "i" or not value.size for value in arrays)
    dtype = np.int64 if whole else np.float64
    return objects([value.astype(dtype) if isinstance(value, np.ndarray) else value for value in column])


def global_steps(batch: NDArray[np.int64], epoch: NDArray[np.int64], given: NDArray[np.float64]) -> NDArray[np.int64]:
    """The given steps; a missing one is the last step plus the batches that are known to have passed.

    >>> nothing = np.full(4, np.nan)
    >>> global_steps(np.array([200, 400, 200, 400]), np.array([0, 0, 1, 1]), nothing).tolist()
    [200, 400, 600, 800]
    >>> global_steps(np.array([0, 200, 0, 200]), np.array([0, 0, 1, 1]), nothing).tolist()  # batches from 0 on
    [0, 200, 201, 401]
    """
    if not len(batch):
        return np.empty(0, np.int64)
    again = (np.diff(epoch) != 0) | (np.diff(batch) < 0)
    from_zero = int((batch == 0).any())
    passed = np.concatenate([batch[:1], np.where(again, batch[1:] + from_zero, np.diff(batch))])
    reached = np.cumsum(passed)
    known = np.isfinite(given)
    last = np.maximum.accumulate(np.where(known, np.arange(len(batch)), -1))
    ahead = np.where(known, np.nan_to_num(given), 0).astype(np.int64) - np.where(known, reached, 0)
    return reached + np.where(last >= 0, ahead[last], 0)
