"""CSV: a column a name, a row a step; also what Lightning's CSVLogger, Keras and spreadsheets write.

An empty cell was not measured. `nan` and `inf` were. Columns are read as arrays, a block of rows at a time, so that a
million rows are no million objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from packaging.version import Version

from learnscope.importing.foreign import (
    ORDER,
    Curve,
    Floats,
    Foreign,
    Gathered,
    Ints,
    Progress,
    differing,
    last_of_each,
)
from learnscope.importing.names import EPOCHS, STEPS, TIMES, first_of, plain
from learnscope.importing.table_form import Form, form_of
from learnscope.options import did_you_mean
from learnscope.store.errors import RunError
from learnscope.store.telemetry import global_steps

ROWS = 100_000
"""Rows that are read at a time."""
MISSING = ("", "null", "none", "na", "n/a", "-", "<na>")
WITHIN_EPOCH = ("batch", "batch_idx", "step", "iteration", "iter")
"""Columns that may count within an epoch."""
_EXACT: dict[str, Any] = {} if Version(pd.__version__) >= Version("3.1") else {"float_precision": "round_trip"}
"""What makes pandas read each number as the nearest one; later versions always do."""
_MILLISECONDS = 1e11
"""From here on a time is in milliseconds: as seconds it would be the year 5138."""


def read(
    path: Path, *, name: str, step: str | None = None, leave_out: Sequence[str] = (),
    progress: Progress = lambda *_: None,
) -> Foreign:  # fmt: skip
    """One training from a table with a head."""
    form = form_of(path)
    columns, texts = _columns(path, form, leave_out, progress)
    steps, said, used, notes = _steps(path, columns, step)
    times, time_column = _times(columns, texts)
    curves, starts, replaced = _curves(columns, steps, times, {used, time_column})
    if not curves:
        raise RunError(f"{path} has no column of numbers besides {said}: its columns are {', '.join(form.names)}")
    texts.pop(time_column or "", None)
    asked = {each: "as asked" for each in leave_out if each in form.names}
    return Foreign(
        format="csv", name=name, files=[path], curves=curves, starts=starts, step=said,
        read_with=f"pandas {pd.__version__}", left_out=dict.fromkeys(texts, "text") | asked,
        problems=form.problems, notes=[*form.notes, *notes, *replaced],
    )  # fmt: skip


def _columns(
    path: Path, form: Form, leave_out: Sequence[str], progress: Progress
) -> tuple[dict[str, Floats], dict[str, NDArray[Any]]]:
    """Columns of numbers, with a mask for what is missing in place of NaN: see `NOT_THERE`; and columns of texts."""
    blocks: dict[str, list[Any]] = {name: [] for name in form.names if name not in leave_out}
    done = 0
    for frame in _frames(path, form):
        for column in blocks:
            blocks[column].append(frame[column].to_numpy())
        done += len(frame)
        progress(done, form.rows)
    if not done:
        raise RunError(f"{path} has a head and no rows")
    numbers: dict[str, Floats] = {}
    texts: dict[str, NDArray[Any]] = {}
    for column in list(blocks):
        parts = blocks.pop(column)
        if all(part.dtype.kind in "iuf" for part in parts):
            numbers[column] = np.concatenate([part.astype(np.float64) for part in parts])
            continue
        cells = np.concatenate([part.astype(object) for part in parts])
        values = _numbers(path, column, cells, form)
        if values is None:
            texts[column] = cells
        else:
            numbers[column] = values
    return numbers, texts


NOT_THERE = np.array([0x7FF8_DEAD_BEEF_0001], np.uint64).view(np.float64)[0]
"""A NaN of its own for a cell that is empty, since NaN itself may have been measured."""


def is_there(values: Floats) -> NDArray[np.bool_]:
    """Which cells hold something."""
    there: NDArray[np.bool_] = values.view(np.uint64) != NOT_THERE.view(np.uint64)
    return there


def _frames(path: Path, form: Form) -> Iterator[pd.DataFrame]:
    """Blocks of rows. A column of numbers with empty cells alone is read fast; one with texts comes as texts."""
    try:
        with pd.read_csv(
            path, sep=form.separator, encoding=form.encoding, decimal=form.decimal, header=None, names=form.names,
            skiprows=form.head, nrows=form.rows, chunksize=ROWS, keep_default_na=False,
            na_values=[""], index_col=False, skipinitialspace=True, skip_blank_lines=True, low_memory=False,
            on_bad_lines="error", **_EXACT,
        ) as frames:  # fmt: skip
            for frame in frames:
                for column in frame.columns:
                    if frame[column].dtype.kind == "f":
                        values = frame[column].to_numpy(np.float64, copy=True)
                        values[np.isnan(values)] = NOT_THERE
                        frame[column] = values
                yield frame
    except (pd.errors.ParserError, UnicodeDecodeError, ValueError) as error:
        raise RunError(f"{path} cannot be read as a table: {' '.join(str(error).split())}") from error


def _numbers(path: Path, column: str, cells: NDArray[Any], form: Form) -> Floats | None:
    """Texts as numbers; None if none of them is one. A column of both is refused with the line of the first text."""
    texts = pd.Series(cells, dtype=object)
    as_text = texts.where(texts.notna(), "").astype(str).str.strip()
    empty = as_text.str.lower().isin(MISSING).to_numpy(bool)
    if form.decimal != ".":
        as_text = as_text.str.replace(form.decimal, ".", regex=False)
    values: Floats = pd.to_numeric(as_text, errors="coerce").to_numpy(np.float64, copy=True)
    measured = as_text.str.lower().isin(("nan", "+nan", "-nan")).to_numpy(bool)
    flags = as_text.str.lower().map({"true": 1.0, "false": 0.0}).to_numpy(np.float64)
    values = np.where(np.isnan(values), flags, values)
    wrong = np.isnan(values) & ~empty & ~measured
    if wrong.all() or (wrong | empty).all():
        return None
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise RunError(
            f"{path}, line {form.line_of(first)}: {column} is {str(cells[first])!r}, not a number, while "
            f"{int((~wrong & ~empty).sum()):,} other cells are. Correct it, or leave the column out, "
            f"leave_out=[{column!r}] (--leave-out {column})"
        )
    values[empty] = NOT_THERE
    return values


def _steps(path: Path, columns: dict[str, Floats], asked: str | None) -> tuple[Ints, str, str | None, list[str]]:
    """The step of each row, what to say of it, the column that it came from, and notes."""
    rows = len(next(iter(columns.values()), ()))
    if asked == ORDER:
        return np.arange(1, rows + 1), "the number of the row", None, []
    if asked is not None and asked not in columns:
        raise RunError(f"{path} has no column of numbers {asked!r} to count steps with.{did_you_mean(asked, columns)}")
    column = asked or first_of(list(columns), STEPS)
    epoch = first_of(list(columns), EPOCHS)
    if column is None and epoch is not None:
        within = first_of(list(columns), WITHIN_EPOCH)
        column = within if within is not None else epoch
    if column is None:
        raise RunError(
            f"{path} has no column that counts steps: name one, step='…' (--step), of {', '.join(columns)}; "
            f"step={ORDER!r} numbers the rows"
        )
    steps = _whole(path, column, columns[column])
    if asked is None and epoch not in (None, column) and plain(column) in WITHIN_EPOCH:
        counted = _over_epochs(path, steps, epoch or "", columns)
        if counted is not None:
            return counted, f"{column}, counted on over {epoch}", None, [
                f"{column} begins again with every {epoch}: steps count on from one to the next"
            ]  # fmt: skip
    return steps, column, column, []


def _over_epochs(path: Path, steps: Ints, epoch: str, columns: dict[str, Floats]) -> Ints | None:
    """Steps that begin again where the epoch rises, counted on; None if they never do, or elsewhere too."""
    epochs = _whole(path, epoch, columns[epoch]) if is_there(columns[epoch]).all() else None
    if epochs is None:
        return None
    falls = np.diff(steps) < 0
    if not falls.any() or (np.diff(epochs)[falls] <= 0).any():
        return None
    return global_steps(steps, epochs, np.full(len(steps), np.nan))


def _whole(path: Path, column: str, values: Floats) -> Ints:
    """A column as whole numbers; a row without one has that of the row before."""
    there = is_there(values)
    bad = there & ~(np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < 2**53))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise RunError(
            f"{path}: {column} is {values[first]} in row {first + 1}, and steps are whole numbers: name another"
        )
    filled = pd.Series(np.where(there, values, np.nan)).ffill()
    if filled.isna().any():
        raise RunError(f"{path}: the first rows have no {column}: name another column to count steps with")
    whole: Ints = filled.to_numpy().astype(np.int64)
    return whole


def _times(columns: dict[str, Floats], texts: dict[str, NDArray[Any]]) -> tuple[Floats | None, str | None]:
    """Seconds since 1970 of each row, and the column that says so; times since a start stay a column of numbers."""
    name = first_of([*columns, *texts], TIMES)
    if name is None:
        return None, None
    if name in texts:
        parsed = pd.to_datetime(pd.Series(texts[name], dtype=object), utc=True, errors="coerce", format="ISO8601")
        if parsed.isna().all():
            return None, None
        since = (parsed - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
        seconds: Floats = since.to_numpy().astype(np.float64)
        return seconds, name
    values = np.where(is_there(columns[name]), columns[name], np.nan)
    known = values[np.isfinite(values)]
    if not len(known) or known.min() < 1e9:  # seconds since the training began, or no time at all
        return None, None
    return (values / 1000 if known.min() > _MILLISECONDS else values), name


def _curves(
    columns: dict[str, Floats], steps: Ints, times: Floats | None, used: set[str | None]
) -> tuple[dict[str, Curve], list[int], list[str]]:
    """A curve for each column, of the cells that hold something; rows whose steps fall begin another attempt."""
    attempts, starts = _attempts(steps)
    at = np.full(len(steps), np.nan) if times is None else times
    curves, notes = {}, []
    for name, values in columns.items():
        there = is_there(values)
        if name in used or not there.any():
            continue
        curve = Curve(steps, values, at, attempts).only(there)
        kept = last_of_each(curve, starts)
        curves[name] = curve.only(kept)
        if lost := differing(curve, kept):
            notes.append(f"{lost:,} cells of {name} are of a step that comes again: the last counts")
    return curves, starts, notes


def _attempts(steps: Ints) -> tuple[Ints, list[int]]:
    """The attempt of each row, and the step after which each begins."""
    gathered = Gathered()
    falls = np.flatnonzero(np.diff(steps) < 0) + 1
    ends = [0, *falls.tolist(), len(steps)]
    for first, end in pairwise(ends):  # they tell where it falls
        gathered.add("row", int(steps[first]), 0.0)
        gathered.add("row", int(steps[end - 1]), 0.0)
    _, starts = gathered.finished()
    attempts = np.zeros(len(steps), np.int64)
    attempts[falls] = 1
    return np.cumsum(attempts), starts
