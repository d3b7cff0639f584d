"""Accuracy of groups of examples over the steps, and how the groups relate to the classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from learnscope.quantities.examples import ExampleLedger, GroupAccuracy
from learnscope.reading.gather import Grid, as_grid, class_of, labels, rows
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
    curves = []
    for label in sorted(labels(reader), key=lambda label: class_of(label) != GroupAccuracy.probe):
        frame = rows(reader, GroupAccuracy.accuracy, kind="group", probe=label)
        if not len(frame):
            continue
        counts = pd.concat([rows(reader, quantity, kind="group", probe=label) for quantity in COUNTS])
        last = counts.drop_duplicates("scope", keep="last").dropna(subset="value")
        word = str(frame["by"].iloc[-1]) if "by" in frame else "group"
        examples = dict(zip(last["scope"], last["value"].astype(int), strict=True))
        notes = {record.step: record.notes for record in reader.records(label)}
        left_out = int(notes[max(notes)].get("left_out", 0))
        curves.append(GroupCurves(label, word, as_grid(frame), examples, left_out))
    return curves


def attribute_numbers(reader: RunReader, label: str) -> pd.DataFrame:
    """The numbers of `GroupAccuracy` about the model: a row for each step that has a gap, a column for each name."""
    frame = reader.frame(label, kind="model").drop_duplicates(["step", "name"], keep="last")
    wide = frame.pivot(index="step", columns="name", values="value").sort_index()
    gap = GroupAccuracy.bias_gap.name
    return wide[np.isfinite(wide[gap])] if gap in wide else wide.iloc[:0]
