"""A telemetry table prepared for drawing: increasing steps, numbers by section, the starts of epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.reading.gather import Floats
from learnscope.reading.words import as_number, count, listed
from learnscope.store.telemetry import last_attempts

Numbers = dict[str, Floats]
GROUPED = ("gradient_norm", "weight_delta", "learning_rates")
"""Sections with a number for every group of parameters."""
HOLDOUT, BATCH, LOGGED, OTHER = "holdout_logits", "batch_stats", "logged", ""
SECTIONS = (*GROUPED, HOLDOUT, BATCH, LOGGED, OTHER)
PLACES = ("global_step", "batch_idx", "epoch", "weight_delta_since")
"""Columns with the position of a collection, and the step from which its weight change is counted."""
MOST_POINTS = 2000
"""Of a curve with more points, only the highest and the lowest of neighbouring points are drawn."""
MOST_EPOCHS = 20
"""With more epochs, only every k-th has a vertical line."""


@dataclass(frozen=True)
class Telemetry:
    """The numbers of a table, without collections that were superseded."""

    table: pd.DataFrame
    steps: NDArray[np.int64]
    begins: Floats
    """The steps at which an epoch begins, without the first."""
    sections: dict[str, Numbers]
    superseded: int
    """How many collections were replaced after a resume, by a later one of the same or an earlier step."""

    @property
    def every(self) -> int:
        """Every k-th epoch has a vertical line; this is k."""
        return max(1, -(-len(self.begins) // MOST_EPOCHS))

    @property
    def facts(self) -> list[str]:
        """What the heading of every figure says about its steps."""
        n = len(self.steps)
        first, last = f"{self.steps[0]:,}", f"{self.steps[-1]:,}"
        out = [f"{count(n, 'collection')}, {f'step {first}' if n == 1 else f'steps {first} to {last}'}"]
        if len(self.begins):
            out.append("vertical lines: " + ("an epoch begins" if self.every == 1 else f"every {self.every} epochs"))
        if self.superseded:
            out.append(f"{count(self.superseded, 'collection')} before a resume left out")
        return out

    def explained(self, section: str, key: str) -> list[str]:
        """What lines say of a number that they have, if the last of them says something."""
        values = self.sections.get(section, {}).get(key)
        statuses = self.table.get("status")
        if values is None or statuses is None:
            return []
        said = [
            status.get(f"{section}.{key}") if isinstance(status, dict) else None
            for status, value in zip(statuses, values, strict=True)
            if np.isfinite(value)
        ]
        return [str(said[-1])] if said and said[-1] else []

    def missing(self, section: str, keys: Sequence[str] | None = None, most: int = 2) -> list[str]:
        """Numbers with gaps, and the most frequent reason."""
        alike: dict[tuple[int, str], list[str]] = {}
        statuses = [s for s in self.table.get("status", ()) if isinstance(s, dict)]
        for key, values in self.sections.get(section, {}).items():
            gaps, name = int(np.isnan(values).sum()), f"{section}.{key}"
            if gaps and (keys is None or key in keys):
                reasons = Counter(str(status[name]) for status in statuses if name in status).most_common(1)
                alike.setdefault((gaps, reasons[0][0] if reasons else ""), []).append(key)
        out = [
            f"{listed(names, 3)} without a value in {gaps:,} of {len(self.steps):,}{f' ({reason})' if reason else ''}"
            for (gaps, reason), names in alike.items()
        ]
        return out[:most] + (["other numbers have gaps as well"] if len(out) > most else [])


def prepare_telemetry(frame: pd.DataFrame) -> Telemetry:
    """The table sorted by step. Rows that a resume superseded are left out, and counted."""
    needed = [name for name in PLACES[:3] if name not in frame]
    if needed:
        raise ValueError(f"the table has no column {needed[0]!r}: pass what read_telemetry gives")
    steps = frame["global_step"].to_numpy(np.int64)
    keep = last_attempts(steps)
    table = frame[keep].reset_index(drop=True)
    sections: dict[str, Numbers] = {}
    for name in table.columns:
        column = table[name]
        if name in PLACES or not pd.api.types.is_numeric_dtype(column):
            continue
        section, _, key = str(name).partition(".") if "." in str(name) else (OTHER, "", str(name))
        sections.setdefault(section, {})[key] = column.to_numpy(np.float64)
    return Telemetry(table, steps[keep], _begins(table), sections, int((~keep).sum()))


def _begins(table: pd.DataFrame) -> Floats:
    """A step minus its batch index, if that lies between the two collections around it; else their middle."""
    steps, batch, epoch = (table[name].to_numpy(np.int64) for name in ("global_step", "batch_idx", "epoch"))
    new = np.flatnonzero(np.diff(epoch) != 0) + 1
    counted = (steps - batch)[new].astype(np.float64)
    before, after = steps[new - 1], steps[new]
    begins: Floats = np.where((counted >= before) & (counted <= after), counted, (before + after) / 2)
    return begins


def same_names(t: Telemetry) -> dict[str, str]:
    """A name for every group; groups whose numbers are all the same share one, such as `group_0 = head`."""
    keys = dict.fromkeys(key for section in GROUPED for key in t.sections.get(section, {}))
    alike: dict[tuple[bytes | None, ...], list[str]] = {}
    for key in keys:
        numbers = [t.sections.get(section, {}).get(key) for section in GROUPED]
        # "overall" is of all groups together, and keeps its name even if there is only one group
        content = (key.encode(),) if key == "overall" else tuple(n if n is None else n.tobytes() for n in numbers)
        alike.setdefault(content, []).append(key)
    return {key: " = ".join(names) for names in alike.values() for key in names}


def thinned(steps: NDArray[np.int64], values: Floats, most: int = MOST_POINTS) -> tuple[NDArray[np.int64], Floats]:
    """At most `most` points: the lowest and the highest of neighbours, so that no extreme is lost."""
    if len(steps) <= most:
        return steps, values
    size = -(-2 * len(steps) // most)
    rows = _in_rows(values, size)
    first = np.arange(len(rows)) * size
    # of a row without any number the first is picked, so that it stays a gap
    ends = [np.where(np.isnan(rows), fill, rows) for fill in (np.inf, -np.inf)]
    picked = np.unique(np.concatenate([first + ends[0].argmin(axis=1), first + ends[1].argmax(axis=1)]))
    return steps[picked], values[picked]


def medians(steps: NDArray[np.int64], values: Floats, size: int) -> tuple[Floats, Floats]:
    """Mean step and median of every `size` neighbours; NaN where none of them has a number."""
    rows = _in_rows(values, size)
    known = ~np.isnan(rows).all(axis=1)
    middle = np.full(len(rows), np.nan)
    middle[known] = np.nanmedian(rows[known], axis=1)
    return np.nanmean(_in_rows(steps.astype(np.float64), size), axis=1), middle


def _in_rows(values: Floats, size: int) -> Floats:
    """`size` neighbours in a row, the last row filled up with NaN."""
    missing = -len(values) % size
    return np.append(values, np.full(missing, np.nan)).reshape(-1, size)


def class_shares(t: Telemetry) -> Numbers:
    """The share of every class in the batches in percent; 0 for one without a number if the others add up to 100."""
    named = {}
    for key, values in t.sections.get(BATCH, {}).items():
        kind, _, label = key.removesuffix("_pct").partition("_")
        if key.endswith("_pct") and kind in ("winner", "class"):
            named[f"{kind} {label}"] = values
    if not named:
        return {}
    shares = np.array(list(named.values()))
    complete = np.abs(np.nansum(shares, axis=0) - 100) < 0.01
    shares[np.isnan(shares) & complete] = 0.0
    by_name = dict(zip(named, shares, strict=True))
    return {name: by_name[name] for name in sorted(named, key=lambda name: (as_number(name.split(" ", 1)[1]), name))}
