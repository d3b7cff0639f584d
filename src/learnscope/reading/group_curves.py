"""Accuracy of groups of examples over the steps, and what is known of the groups as an attribute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from learnscope.quantities.examples import ExampleLedger, GroupAccuracy
from learnscope.reading.gather import Grid, class_of, label_columns, labels
from learnscope.store.reader import RunReader

COUNTS = (GroupAccuracy.examples, ExampleLedger.group_presentations)
"""What probes call the number of examples that an accuracy is of."""


@dataclass(frozen=True)
class GroupCurves:
    """Accuracy of groups over steps, in the order in which they were recorded."""

    probe: str
    word: str
    """What they are: `class` or `group`."""
    accuracies: Grid
    examples: dict[str, int]
    """How many each has, at its last measurement; empty where that was not recorded."""
    left_out: int = 0
    """Groups that were too many to be recorded, at the last measurement."""

    @property
    def start(self) -> float:
        """The lowest accuracy of any group at the first measurement."""
        first = self.accuracies.values[0]
        return float(np.nanmin(first)) if np.isfinite(first).any() else 0.0


def group_curves(reader: RunReader) -> list[GroupCurves]:
    """Of every probe that records an `accuracy` by group: those of test data first."""
    test_data_first = sorted(labels(reader), key=lambda label: class_of(label) != GroupAccuracy.probe)
    return [curves for label in test_data_first if (curves := _of(reader, label)) is not None]


def _of(reader: RunReader, label: str) -> GroupCurves | None:
    frame = reader.frame(label, GroupAccuracy.accuracy.name, "group").drop_duplicates(["step", "scope"], keep="last")
    if not len(frame):
        return None
    scopes = list(dict.fromkeys(frame["scope"].tolist()))
    wide = frame.pivot(index="step", columns="scope", values="value").sort_index()[scopes]
    values = wide.to_numpy(np.float64)
    counted = (reader.frame(label, quantity.name, "group") for quantity in COUNTS)
    counts = next((f for f in counted if len(f)), frame.iloc[:0])
    counts = counts.sort_values("step", kind="stable").drop_duplicates("scope", keep="last")
    known = counts[np.isfinite(counts["value"])]
    word = str(frame["by"].iloc[-1]) if "by" in label_columns(frame) else "group"
    cells = Grid(wide.index.to_numpy(np.int64), scopes, values, np.zeros(values.shape, dtype=bool), label)
    examples = dict(zip(known["scope"], known["value"].astype(int), strict=True))
    notes = {record.step: record.notes for record in reader.records(label)}
    return GroupCurves(label, word, cells, examples, int(notes[max(notes)].get("left_out", 0)))


def attribute_numbers(reader: RunReader, label: str) -> pd.DataFrame:
    """What `GroupAccuracy` says of the whole model: a row a measurement with a gap (by step), a column a number."""
    frame = reader.frame(label, kind="model").drop_duplicates(["step", "name"], keep="last")
    wide = frame.pivot(index="step", columns="name", values="value").sort_index()
    gap = GroupAccuracy.bias_gap.name
    return wide[np.isfinite(wide[gap])] if gap in wide else wide.iloc[:0]
