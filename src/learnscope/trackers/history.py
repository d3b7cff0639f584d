"""What a tracker has measured, read from the records of its probes. Pure data, no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.model.adapters.parameters import OUTSIDE_ADAPTERS
from learnscope.reading.gather import Floats
from learnscope.record import Label, Record

Cell = float | int | Floats | str
"""A number, a list of numbers, or the reason why there is none."""
Value = float | int | list[float] | None
MetricName = Callable[[str, str, Mapping[str, Label]], str | None]
"""A metric's name from a table's kind and a column's name and labels; None for a column that is not tracked."""

NOT_RECORDED = "it was not recorded at this step"
NOT_FINITE = "some of its values are not finite"
OWNER = ("adapter", "family")
"""Labels that say whose a row is; all others distinguish metrics with the same name."""
LISTS = {"singular_values": "largest_sv", "importance_scores": "importance_sum"}
"""Metrics with several numbers a module, and the number whose reason explains a missing list."""


def plain_name(kind: str, name: str, labels: Mapping[str, Label]) -> str | None:
    """For modules and tensors: a column's name, followed by the labels that distinguish it.

    >>> plain_name("module", "left_drift", {"adapter": "default", "family": "lora", "since": "first"})
    'left_drift/first'
    """
    if kind not in ("module", "tensor"):
        return None
    return "/".join([name, *(str(value) for label, value in labels.items() if label not in OWNER)])


@cache
def _places(modules: tuple[str, ...]) -> dict[str, int]:
    """The place of each module, shared by all columns with these modules."""
    return {module: place for place, module in enumerate(modules)}


class Column(Mapping[str, Cell]):
    """One metric at one step: the cells by module, with all numbers in one array."""

    __slots__ = ("numbers", "others", "places", "whole")

    def __init__(self, cells: Mapping[str, Cell]) -> None:
        self.places = _places(tuple(cells))
        self.others = {module: cell for module, cell in cells.items() if not isinstance(cell, float | int)}
        self.whole = not any(isinstance(cell, float) for cell in cells.values())
        numbers = [np.nan if module in self.others else cell for module, cell in cells.items()]
        self.numbers = np.array(numbers, dtype=np.float64)

    def __getitem__(self, module: str) -> Cell:
        if module in self.others:
            return self.others[module]
        number = self.numbers.item(self.places[module])
        return int(number) if self.whole else number

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


@dataclass(slots=True)
class Measurement:
    """What one probe recorded at one step."""

    cost: float
    """In seconds."""
    error: str | None = None
    cells: dict[str, dict[str, Column]] = field(default_factory=dict)
    """By adapter, metric and module."""


@dataclass(slots=True)
class History:
    """All measurements by step and probe, and the families of every adapter's modules in order of appearance."""

    measured: dict[int, dict[str, Measurement]] = field(default_factory=dict)
    families: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def steps(self) -> list[int]:
        return sorted(self.measured)

    def take(self, record: Record, arrays: Mapping[str, NDArray[Any]], metric_name: MetricName) -> None:
        """Add a record with its arrays; it replaces an earlier one of the same probe and step."""
        others = self.measured.setdefault(record.step, {})
        others.pop(record.probe, None)
        tables: dict[str, dict[str, dict[str, Cell]]] = {}
        for table in record.tables:
            for column in table.columns:
                metric = metric_name(table.kind, column.name, column.labels)
                if metric is None:
                    continue
                adapter, family = (str(column.labels.get(label, OUTSIDE_ADAPTERS)) for label in OWNER)
                if any(adapter in other.cells for other in others.values()):
                    raise ValueError(
                        f"two probes measured the adapter {adapter!r} at step {record.step}: where weights outside "
                        f"adapters are tracked as well, no adapter may be called {OUTSIDE_ADAPTERS!r}, which stands "
                        "for them"
                    )
                families = self.families.setdefault(adapter, {})
                cells = tables.setdefault(adapter, {}).setdefault(metric, {})
                for place, (module, value) in enumerate(zip(table.scopes, column.values, strict=True)):
                    families.setdefault(module, family)
                    cells[module] = column.status[place] if value is None else value
        for name, values in arrays.items():
            self._add_list(tables, name, np.asarray(values, dtype=np.float64))
        for metrics in tables.values():
            for metric, number in LISTS.items():
                for module, cell in metrics.get(number, {}).items():
                    if isinstance(cell, str) and not isinstance(metrics.get(metric, {}).get(module), np.ndarray):
                        metrics.setdefault(metric, {})[module] = cell
        columns = {
            adapter: {metric: Column(cells) for metric, cells in metrics.items()} for adapter, metrics in tables.items()
        }
        others[record.probe] = Measurement(record.cost, record.error, columns)

    def _add_list(self, tables: dict[str, dict[str, dict[str, Cell]]], name: str, values: Floats) -> None:
        """An array called `<metric>/<adapter>/<module>`, or `<metric>/<module>` outside adapters."""
        metric, _, owner = name.partition("/")
        for adapter, metrics in tables.items():
            module = owner.removeprefix(f"{adapter}/")
            if module in self.families[adapter] and (module != owner or adapter == OUTSIDE_ADAPTERS):
                finite = len(values) and np.isfinite(values).all()
                metrics.setdefault(metric, {})[module] = values if finite else NOT_FINITE
                return

    def cost(self, step: int) -> float:
        return sum(measurement.cost for measurement in self.measured[step].values())

    def failed(self, step: int) -> str | None:
        """Why nothing, or not everything, could be measured."""
        errors = [measurement.error for measurement in self.measured[step].values() if measurement.error]
        return "; ".join(errors) or None

    def cells(self, step: int, adapter: str) -> Mapping[str, Mapping[str, Cell]]:
        """What was measured of an adapter at a step, by metric and module; empty if nothing was."""
        measurements = self.measured.get(step, {}).values()
        return next((m.cells[adapter] for m in measurements if adapter in m.cells), {})

    def present(self, step: int, adapter: str) -> dict[str, str]:
        """The modules with a number or a reason at a step, as adapters come and go; with their families."""
        measured = {module for column in self.cells(step, adapter).values() for module in column}
        return {module: family for module, family in self.families[adapter].items() if module in measured}

    def metrics(self, adapter: str, module: str | None = None) -> list[str]:
        """All metrics of an adapter's modules, or of one of them."""
        tables = [self.cells(step, adapter) for step in self.measured]
        known = dict.fromkeys(metric for table in tables for metric in table)
        return [
            metric for metric in known if module is None or any(module in table.get(metric, ()) for table in tables)
        ]

    def modules_with(self, adapters: Sequence[str], metric: str) -> list[tuple[str, str]]:
        """Adapter and name of the modules that have a metric, in the model's order; those outside adapters last."""
        ordered = sorted(
            (adapter for adapter in self.families if adapter in adapters),
            key=lambda adapter: adapter == OUTSIDE_ADAPTERS,
        )
        tables = {adapter: [self.cells(step, adapter).get(metric, {}) for step in self.measured] for adapter in ordered}
        return [
            (adapter, module)
            for adapter in ordered
            for module in self.families[adapter]
            if any(module in table for table in tables[adapter])
        ]

    def has_lists(self, metric: str) -> bool:
        """Whether it has several numbers for each module."""
        tables = [self.cells(step, adapter).get(metric, {}) for step in self.measured for adapter in self.families]
        return any(isinstance(cell, np.ndarray) for table in tables for cell in table.values())

    def read(self, step: int, adapter: str, metric: str, module: str) -> tuple[Value, str | None]:
        """A value, or None and the reason for it."""
        table = self.cells(step, adapter)
        cell = table.get(metric, {}).get(module)
        if cell is None:
            return None, NOT_RECORDED if table else self.failed(step) or NOT_RECORDED
        if isinstance(cell, str):
            return None, cell
        return (cell.tolist() if isinstance(cell, np.ndarray) else cell), None

    def over_steps(
        self, read: Callable[[int, str], tuple[Value, str | None]], metrics: Sequence[str]
    ) -> dict[str, Any]:
        """Metrics over the logged `steps`; `reasons` say why a value is None, by metric and step."""
        steps, values, reasons = self.steps, dict[str, Any](), dict[str, dict[int, str]]()
        for metric in metrics:
            cells = {step: read(step, metric) for step in steps}
            values[metric] = [value for value, _ in cells.values()]
            missing = {step: reason for step, (_, reason) in cells.items() if reason is not None}
            reasons |= {metric: missing} if missing else {}
        return {"steps": steps, **values, "reasons": reasons}

    def of_module(self, adapter: str, module: str, metrics: Sequence[str]) -> dict[str, Any]:
        return self.over_steps(lambda step, metric: self.read(step, adapter, metric, module), metrics)

    def over_modules(self, step: int | None, adapters: Sequence[str], metric: str) -> dict[str, float | int | None]:
        """Statistics of the modules' numbers; modules without one are left out, and counted as `missing`.

        `std` is the deviation of all modules from their mean (no correction: they are not a sample).
        """
        columns = {} if step is None else {adapter: self.cells(step, adapter).get(metric, {}) for adapter in adapters}
        cells = [column[m] for adapter, column in columns.items() for m in self.families[adapter] if m in column]
        values = np.array([cell for cell in cells if isinstance(cell, float | int)], dtype=np.float64)
        numbers = {
            name: float(getattr(values, name)()) if len(values) else None for name in ("mean", "std", "min", "max")
        }
        return {**numbers, "n": len(values), "missing": len(cells) - len(values)}
