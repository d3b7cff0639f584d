"""A telemetry file as a table: one row per collection, one column per number."""

from __future__ import annotations

import json
import math
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learnscope.characters import visible_json
from learnscope.store.backend import RunError

if TYPE_CHECKING:
    import pandas as pd

Path = tuple[str, ...]
"""Where a value stands in a line: ("gradient_norm", "overall")."""
Values = NDArray[Any]

FILE = "telemetry.jsonl"
STATUS = ("status",)
ARRAYS = frozenset(("holdout_logits", name) for name in ("logits", "labels", "predictions"))
"""Lists with an entry for every held-out example: most of a file, and read only on request."""
MAX_LISTED = 10


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
    file = pathlib.Path(path)
    file = file / FILE if file.is_dir() else file
    if not file.is_file():
        raise RunError(f"{file} is not there. Name a {FILE} or the folder that holds it, the telemetry's output_dir.")
    table, problems = _Table(), []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                if line.strip():
                    table.add(_collection(line), logits)
            except (ValueError, RecursionError) as error:
                problems.append(f"line {number}: {error}")
    if problems:
        more = f"; and {len(problems) - MAX_LISTED:,} more" if len(problems) > MAX_LISTED else ""
        listed = "; ".join(problems[:MAX_LISTED])
        warnings.warn(f"torn or damaged lines of {file} were skipped: {listed}{more}", stacklevel=2)
    frame = table.frame()
    return frame if superseded else frame[last_attempts(frame["global_step"].to_numpy())].reset_index(drop=True)


def last_attempts(steps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose step is below that of every later row: within an attempt steps only increase."""
    later = np.minimum.accumulate(steps[::-1])[::-1]  # the smallest step from each row on
    kept = np.ones(len(steps), dtype=np.bool_)
    kept[:-1] = steps[:-1] < later[1:]
    return kept


def _collection(line: bytes) -> dict[str, Any]:
    body = json.loads(visible_json(line.rstrip(b"\n").decode()))
    if not isinstance(body, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  (damage like any other)
    for name in ("batch_idx", "epoch", "global_step"):
        value = body.get(name)
        is_whole = type(value) is int and -(2**63) <= value < 2**63
        if not is_whole and not (value is None and name == "global_step"):
            raise ValueError(f"its {name} is {value!r} instead of a whole number")
    return body


class _Table:
    """Columns that grow line by line."""

    def __init__(self) -> None:
        self._rows = 0
        self._cells: dict[Path, dict[int, Any]] = {}
        self._sections: dict[Path, bool] = {}
        """Every path in the order of appearance, and whether it ever was an object."""

    def add(self, body: dict[str, Any], logits: bool) -> None:
        for name, value in body.items():
            self._place((name,), value, logits)
        self._rows += 1

    def _place(self, path: Path, value: Any, logits: bool) -> None:
        """Put a value into its column; the members of an object each into a column of their own."""
        is_object = isinstance(value, dict) and path != STATUS
        self._sections[path] = is_object or self._sections.get(path, False)
        if is_object:
            for name, member in value.items():
                self._place((*path, name), member, logits)
        elif logits or path not in ARRAYS:
            self._cells.setdefault(path, {})[self._rows] = value

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        batch, epoch = (np.array(self._values((name,)), dtype=np.int64) for name in ("batch_idx", "epoch"))
        columns: dict[str, Values] = {
            "batch_idx": batch,
            "epoch": epoch,
            "global_step": global_steps(batch, epoch, _column(self._values(("global_step",)))),
            "timestamp": _times(self._values(("timestamp",))),
        }
        fixed = {STATUS, *((name,) for name in columns)}
        rank = {path: place for place, path in enumerate(self._sections)}
        for path in sorted(self._cells, key=lambda path: [rank[path[: n + 1]] for n in range(len(path))]):
            if path in fixed:
                continue
            values = self._values(path)
            column = _arrays(values, whole=path[1] != "logits") if path in ARRAYS else _column(values)
            # a section that is null in some rows is not a number that was never measured
            if not (self._sections[path] and pd.isna(column).all()):
                columns[".".join(path)] = column
        columns["status"] = _objects([_reasons(value) for value in self._values(STATUS)])
        # otherwise pandas would turn objects that are all strings into its text type
        series = {name: pd.Series(values, dtype=values.dtype) for name, values in columns.items()}
        return pd.DataFrame(series, columns=list(series))

    def _values(self, path: Path) -> list[Any]:
        cells = self._cells.get(path, {})
        return [cells.get(row) for row in range(self._rows)]


def _column(values: Sequence[Any]) -> Values:
    """Numbers as float64 with NaN for null; anything else as objects with None."""
    if {type(value) for value in values} <= {int, float, type(None)}:
        return np.array([_number(value) for value in values], dtype=np.float64)
    return _objects([_number(value) if type(value) in (int, float) else value for value in values])


def _number(value: float | None) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number beyond float64
        return math.inf if value > 0 else -math.inf


def _reasons(status: Any) -> Any:
    """The reasons that are not null; None if there are none."""
    if not isinstance(status, dict):
        return status
    return {key: reason for key, reason in status.items() if reason is not None} or None


def _arrays(values: Sequence[Any], whole: bool) -> Values:
    """Lists of numbers as arrays: of integers if all of them are, otherwise of floats; empty ones do not decide."""
    arrays = [_array(value) for value in values]
    whole = whole and all(
        value.dtype.kind == "i" or not value.size for value in arrays if isinstance(value, np.ndarray)
    )
    dtype = np.int64 if whole else np.float64
    return _objects([value.astype(dtype) if isinstance(value, np.ndarray) else value for value in arrays])


def _array(value: Any) -> Any:
    """A list of numbers as an array, null as NaN; a list that is not rectangular stays as it is."""
    if not isinstance(value, list):
        return value
    try:
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "iubfO":
            return value
        return numbers.astype(np.int64 if numbers.dtype.kind in "iub" else np.float64)
    except (ValueError, TypeError):
        return value


def _times(values: Sequence[Any]) -> Values:
    """ISO times; those with an offset are converted to UTC, others stay as they are. Anything else is NaT."""
    import pandas as pd

    texts = pd.Series([value if isinstance(value, str) else None for value in values], dtype=object)
    parsed = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
    return parsed.dt.tz_localize(None).to_numpy("datetime64[us]")


def _objects(values: Sequence[Any]) -> Values:
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = None if isinstance(value, float) and math.isnan(value) else value
    return column


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
