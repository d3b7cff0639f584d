"""A telemetry table made ready for drawing: steps that only go forward, numbers by section, where epochs begin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.findings.gather import Floats
from learnscope.findings.words import count

Numbers = dict[str, Floats]
GROUPED = ("gradient_norm", "weight_delta", "learning_rates")
"""Sections with a number for every group of parameters."""
HOLDOUT, BATCH, LOGGED, OTHER = "holdout_logits", "batch_stats", "logged", ""
MOST_POINTS = 2000
"""Points of a curve beyond which only the highest and the lowest of neighbours are drawn."""


@dataclass(frozen=True)
class Telemetry:
    """What can be drawn of a table."""

    table: pd.DataFrame
    steps: NDArray[np.int64]
    begins: Floats
    """The steps at which an epoch begins, without the first."""
    sections: dict[str, Numbers]
    superseded: int
    """Collections that a later one of the same or an earlier step replaces, after a resume."""

    @property
    def facts(self) -> list[str]:
        """What every figure says about its steps."""
        n = len(self.steps)
        first, last = f"{self.steps[0]:,}", f"{self.steps[-1]:,}"
        out = [f"{count(n, 'collection')}, {f'step {first}' if n == 1 else f'steps {first} to {last}'}"]
        if len(self.begins):
            out.append("vertical lines: an epoch begins")
        if self.superseded:
            out.append(f"{count(self.superseded, 'collection')} before a resume left out")
        return out

    def missing(self, section: str, keys: Sequence[str] | None = None, most: int = 3) -> list[str]:
        """Numbers with gaps, and the reason that is given most often."""
        out = []
        for key, values in self.sections.get(section, {}).items():
            gaps = int(np.isnan(values).sum())
            if gaps and (keys is None or key in keys):
                reason = self._reason(f"{section}.{key}")
                out.append(f"{key} without a value in {gaps:,} of {len(values):,}{f' ({reason})' if reason else ''}")
        return out[:most] + ([f"{count(len(out) - most, 'more number')} with gaps"] if len(out) > most else [])

    def _reason(self, name: str) -> str:
        given: Sequence[object] = self.table["status"].tolist() if "status" in self.table else ()
        reasons = Counter(str(status[name]) for status in given if isinstance(status, dict) and name in status)
        return reasons.most_common(1)[0][0] if reasons else ""


def prepared(frame: pd.DataFrame) -> Telemetry:
    """The table in the order of its steps. Rows that a resume made obsolete are left out, and counted."""
    needed = [name for name in ("global_step", "batch_idx", "epoch") if name not in frame]
    if needed:
        raise ValueError(f"the table has no column {needed[0]!r}: pass what read_telemetry gives")
    steps = frame["global_step"].to_numpy(np.int64)
    following = np.append(np.minimum.accumulate(steps[::-1])[::-1][1:], np.iinfo(np.int64).max)
    keep = steps < following
    table = frame[keep].reset_index(drop=True)
    sections: dict[str, Numbers] = {}
    for name in table.columns:
        column = table[name]
        if name in ("global_step", "batch_idx", "epoch") or not pd.api.types.is_numeric_dtype(column):
            continue
        section, _, key = str(name).partition(".") if "." in str(name) else (OTHER, "", str(name))
        sections.setdefault(section, {})[key] = column.to_numpy(np.float64)
    return Telemetry(table, steps[keep], _begins(table), sections, int((~keep).sum()))


def _begins(table: pd.DataFrame) -> Floats:
    """A step minus the batches of its epoch up to there; between two collections in any case."""
    steps, batch, epoch = (table[name].to_numpy(np.int64) for name in ("global_step", "batch_idx", "epoch"))
    new = np.flatnonzero(np.diff(epoch) != 0) + 1
    counted = (steps - batch)[new].astype(np.float64)
    before, after = steps[new - 1], steps[new]
    begins: Floats = np.where((counted >= before) & (counted <= after), counted, (before + after) / 2)
    return begins


def same_names(t: Telemetry) -> dict[str, str]:
    """What to call every group; groups whose numbers are all the same share a name, such as `group_0 = head`."""
    keys = dict.fromkeys(key for section in GROUPED for key in t.sections.get(section, {}))
    alike: dict[tuple[bytes | None, ...], list[str]] = {}
    for key in keys:
        numbers = [t.sections.get(section, {}).get(key) for section in GROUPED]
        # "overall" is every group's together, also where there is only one group
        seen = (key.encode(),) if key == "overall" else tuple(n if n is None else n.tobytes() for n in numbers)
        alike.setdefault(seen, []).append(key)
    return {key: " = ".join(names) for names in alike.values() for key in names}


def thinned(steps: NDArray[np.int64], values: Floats, most: int = MOST_POINTS) -> tuple[NDArray[np.int64], Floats]:
    """At most `most` points: of neighbours the lowest and the highest, so that no extreme is lost."""
    size = -(-2 * len(steps) // most)
    if len(steps) <= most:
        return steps, values
    starts = np.arange(0, len(steps), size)
    picked = []
    for start in starts:
        part = values[start : start + size]
        if np.isnan(part).all():
            picked.append(start)
        else:
            picked += sorted({start + int(np.nanargmin(part)), start + int(np.nanargmax(part))})
    return steps[picked], values[picked]


def class_shares(t: Telemetry) -> Numbers:
    """The share of every class in the batches, in percent, by what to call the class.

    A class that is not in a batch has no number there; where the others make up the whole, its share is known to be 0.
    """
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
    return dict(sorted(zip(named, shares, strict=True), key=lambda item: _number_first(item[0])))


def _number_first(name: str) -> tuple[float, str]:
    try:
        return float(name.split(" ", 1)[1]), name
    except ValueError:
        return float("inf"), name
