"""Numbers without a figure of their own: those of the user's probes, what else the loop logged, and declared ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from learnscope.quantities import Quantity, declared, quantity_of
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import as_series, class_of, label_columns, labels, last_of_each
from learnscope.reading.words import num
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class OtherNumber:
    """A name that a probe recorded, with its rows in the order of steps: one for each step, scope and set of labels."""

    title: str
    frame: pd.DataFrame
    quantity: Quantity | None

    def by_labels(self) -> dict[str, pd.DataFrame]:
        """The rows of every combination of labels, by its description."""
        used = [column for column in label_columns(self.frame) if self.frame[column].notna().any()]
        if not used:
            return {"": self.frame}
        parts = [part for _, part in self.frame.groupby(used, dropna=False, sort=False)]
        values = [part[used].iloc[0].dropna() for part in parts]
        descriptions = [", ".join(f"{label} {value}" for label, value in each.items()) for each in values]
        return dict(zip(descriptions, parts, strict=True))


def other_numbers(reader: RunReader, kind: str) -> Iterator[OtherNumber]:
    columns = reader.columns()
    for label in labels(reader):
        of_loop = class_of(label) == Loss.probe
        names = columns.names(label, kind)
        for name in names:
            quantity = declaration(reader, label, name)
            if of_loop:  # the names are the loop's own; the spread of another number is not one
                is_spread = name.removesuffix("_std") in {*names} - {name}
                other = name != Loss.loss.name and not is_accuracy(name) and not is_spread
            else:
                other = class_of(label) not in declared() if quantity is None else quantity.drawn == "by kind"
            if other:
                title = name if of_loop else f"{label}: {name}"
                yield OtherNumber(title, last_of_each(reader.frame(label, name, kind)), quantity)


def is_accuracy(name: str) -> bool:
    """Whether a name that the loop logged is drawn with the accuracies.

    >>> is_accuracy("train_accuracy"), is_accuracy("accuracy_std")
    (True, False)
    """
    return "accuracy" in name.lower() and not name.endswith("_std")


def declaration(reader: RunReader, label: str, name: str) -> Quantity | None:
    """From the package, or from the run's manifest, which has what a user's probe declared."""
    if class_of(label) in declared():
        return quantity_of(class_of(label), name)
    entry = (reader.manifest.get("probes") or {}).get(label) or {}
    quantities = [Quantity.from_json(body) for body in entry.get("names") or []]
    return next((quantity for quantity in quantities if quantity.names(name)), None)


def measured_once(reader: RunReader) -> list[str]:
    """Numbers of the model that would be a dot on a figure, in words."""
    return [
        f"{number.title}{f' ({labels})' if labels else ''} {exact(float(values.finite.values[0]))}"
        for number in other_numbers(reader, "model")
        for labels, rows in number.by_labels().items()
        if len(values := as_series(rows)) == 1 and len(values.finite)
    ]


def exact(value: float) -> str:
    """
    >>> exact(1437.0), exact(0.12345)
    ('1,437', '0.123')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else num(value)
