"""Numbers without a figure of their own: those of the user's probes, what else the loop logged, and declared ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from learnscope.quantities import Quantity, declared, quantity_of
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import Grid, Series, as_grid, as_series, class_of, label_columns, labels
from learnscope.reading.words import num
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Undrawn:
    """A name of a probe with its rows in the order of steps, one for each step, scope and labels."""

    title: str
    """What it is called on a figure."""
    frame: pd.DataFrame
    quantity: Quantity | None
    """Its declaration, where there is one."""

    def by_labels(self) -> list[tuple[str, pd.DataFrame]]:
        """The rows of every combination of labels, and how to say it."""
        used = [column for column in label_columns(self.frame) if self.frame[column].notna().any()]
        if not used:
            return [("", self.frame)]
        parts = []
        for _, part in self.frame.groupby(used, dropna=False, sort=False):
            known = part[used].iloc[0].dropna()
            parts.append((", ".join(f"{key} {value}" for key, value in known.items()), part))
        return parts

    def series(self) -> dict[str, Series]:
        """A series for every combination of labels."""
        return {labels: as_series(part) for labels, part in self.by_labels()}

    def grids(self, reader: RunReader) -> dict[str, Grid]:
        """A grid of scopes and steps for every combination of labels."""
        return {labels: as_grid(reader, part) for labels, part in self.by_labels()}


def undrawn(reader: RunReader, kind: str) -> Iterator[Undrawn]:
    """The names of a kind that no panel shows."""
    for label in labels(reader):
        frame = reader.frame(label, kind=kind)
        names = [str(name) for name in frame["name"].unique()]
        for name in names:
            quantity = _declaration(reader, label, name)
            if not _by_kind(class_of(label), name, names, quantity):
                continue
            rows = frame[frame["name"] == name]
            own = ["step", "scope", *label_columns(rows)]
            rows = rows.drop_duplicates(own, keep="last").sort_values("step", kind="stable")
            yield Undrawn(name if class_of(label) == Loss.probe else f"{label}: {name}", rows, quantity)


def is_accuracy(name: str) -> bool:
    """Whether a name that the loop logged is drawn with the accuracies.

    >>> is_accuracy("train_accuracy"), is_accuracy("accuracy_std")
    (True, False)
    """
    return "accuracy" in name.lower() and not name.endswith("_std")


def _by_kind(probe: str, name: str, beside: list[str], quantity: Quantity | None) -> bool:
    if probe == Loss.probe:  # the names are the loop's own; the spread of another number is not one
        return name != Loss.loss.name and not is_accuracy(name) and name.removesuffix("_std") not in {*beside} - {name}
    return probe not in declared() if quantity is None else quantity.drawn == "by kind"


def _declaration(reader: RunReader, label: str, name: str) -> Quantity | None:
    """From the package, or from the run's manifest, which keeps what a user's probe declared."""
    known = quantity_of(class_of(label), name)
    if known is not None or class_of(label) in declared():
        return known
    entry = (reader.manifest.get("probes") or {}).get(label) or {}
    kept = [Quantity.from_json(body) for body in entry.get("names") or []]
    return next((quantity for quantity in kept if quantity.names(name)), None)


def measured_once(reader: RunReader) -> list[str]:
    """Numbers of the model that would be a dot on a figure, in words."""
    return [
        f"{number.title}{f' ({labels})' if labels else ''} {_exact(float(values.finite.values[0]))}"
        for number in undrawn(reader, "model")
        for labels, values in number.series().items()
        if len(values) == 1 and len(values.finite)
    ]


def _exact(value: float) -> str:
    """
    >>> _exact(1437.0), _exact(0.12345)
    ('1,437', '0.123')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else num(value)
