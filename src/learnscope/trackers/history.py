"""What trackers have measured, read from records: for each adapter and metric, a number a module at every logged step.

Pure data, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.reading.gather import Floats
from learnscope.record import Column, Label, Record

Value = float | int | list[float] | None
Naming = Callable[[str, str, Mapping[str, Label]], str | None]
"""A metric's name from a table's kind and a column's name and labels; None for a column that is not kept."""

NOT_RECORDED = "it was not recorded at this step"
NOT_FINITE = "some of its values are not finite"
OWNER = ("adapter", "family")
"""Labels that say whose a row is; all others tell metrics of one name apart."""
EXPLAINS = {"singular_values": "largest_sv", "importance_scores": "importance_sum"}
"""A number that is null, with its reason, wherever the list is not there."""


def plain_name(kind: str, name: str, labels: Mapping[str, Label]) -> str | None:
    """Of modules and tensors: a column's name, with its labels where they tell it from others of that name.

    >>> plain_name("module", "left_drift", {"adapter": "default", "family": "lora", "since": "first"})
    'left_drift/first'
    """
    if kind not in ("module", "tensor"):
        return None
    return "/".join([name, *(str(value) for label, value in labels.items() if label not in OWNER)])


@dataclass(slots=True)
class AdapterHistory:
    """The numbers of one adapter's modules. By metric and step, as they come and go."""

    rows: dict[str, int] = field(default_factory=dict)
    """The place of every module, in the order in which they were first seen."""
    families: list[str] = field(default_factory=list)
    numbers: dict[str, dict[int, Floats]] = field(default_factory=dict)
    """One a module, as many as were known by then; NaN where there is none."""
    fractions: set[str] = field(default_factory=set)
    """Metrics that do not count something: their numbers are not all whole."""
    lists: dict[str, dict[int, dict[str, Floats]]] = field(default_factory=dict)
    """By module: singular values, importance scores."""
    reasons: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)
    """By module, why there is no number."""

    def read(self, metric: str, module: str, step: int) -> Value:
        """A number, a list, or None."""
        if metric in self.lists:
            values = self.lists[metric].get(step, {}).get(module)
            return None if values is None else values.tolist()
        held, row = self.numbers.get(metric, {}).get(step), self.rows.get(module)
        if held is None or row is None or row >= len(held) or np.isnan(held[row]):
            return None
        return float(held[row]) if metric in self.fractions else int(held[row])

    def reason(self, metric: str, module: str, step: int) -> str:
        """Why `read` gives None."""
        return self.reasons.get(metric, {}).get(step, {}).get(module, NOT_RECORDED)

    def has(self, metric: str, module: str) -> bool:
        """Whether it was to be measured at any step: there is a value, or a reason for none."""
        steps = {*self.numbers.get(metric, ()), *self.lists.get(metric, ()), *self.reasons.get(metric, ())}
        return any(
            self.read(metric, module, step) is not None or self.reason(metric, module, step) != NOT_RECORDED
            for step in steps
        )

    def there(self, step: int) -> list[str]:
        """The modules that were measured at a step, as adapters come and go: with a number, or a reason for none."""
        held = [by_step[step] for by_step in self.numbers.values() if step in by_step]
        why = [by_step[step] for by_step in self.reasons.values() if step in by_step]
        return [
            module
            for module, row in self.rows.items()
            if any(row < len(one) and not np.isnan(one[row]) for one in held) or any(module in one for one in why)
        ]

    def add(self, step: int, metric: str, family: str, scopes: Sequence[str], column: Column) -> None:
        """The numbers of a column."""
        for scope in scopes:
            if scope not in self.rows:
                self.rows[scope] = len(self.rows)
                self.families.append(family)
        held, by_step = np.full(len(self.rows), np.nan), self.numbers.setdefault(metric, {})
        if step in by_step:
            held[: len(by_step[step])] = by_step[step]
        held[[self.rows[scope] for scope in scopes]] = [np.nan if v is None else v for v in column.values]
        by_step[step] = held
        if not all(value is None or isinstance(value, int) for value in column.values):
            self.fractions.add(metric)
        missing = {scopes[i]: column.status.get(i, NOT_RECORDED) for i, v in enumerate(column.values) if v is None}
        self._explain(metric, step, missing)

    def add_list(self, step: int, metric: str, module: str, values: Floats) -> None:
        held = self.lists.setdefault(metric, {}).setdefault(step, {})
        if len(values) and np.isfinite(values).all():
            held[module] = values
        else:
            self._explain(metric, step, {module: NOT_FINITE})

    def explain_lists(self, step: int) -> None:
        """A list that is not there is missing for the reason of its number."""
        for metric, number in EXPLAINS.items():
            if step in self.numbers.get(number, ()):
                held = self.lists.setdefault(metric, {}).get(step, {})
                why = self.reasons.get(number, {}).get(step, {})
                self._explain(metric, step, {module: text for module, text in why.items() if module not in held})

    def _explain(self, metric: str, step: int, missing: Mapping[str, str]) -> None:
        if missing:
            self.reasons.setdefault(metric, {}).setdefault(step, {}).update(missing)

    def forget(self, step: int) -> None:
        for kept in (self.numbers, self.lists, self.reasons):
            for by_step in kept.values():
                by_step.pop(step, None)


@dataclass(slots=True)
class Firing:
    """What one probe did at one step."""

    cost: float
    """In seconds."""
    failed: str | None = None
    """Why nothing could be measured."""
    adapters: list[str] = field(default_factory=list)
    """Of which there are numbers, or reasons for none."""


@dataclass(slots=True)
class History:
    """All that was logged, by adapter."""

    adapters: dict[str, AdapterHistory] = field(default_factory=dict)
    firings: dict[int, dict[str, Firing]] = field(default_factory=dict)
    """By step and probe."""

    @property
    def steps(self) -> list[int]:
        return sorted(self.firings)

    @property
    def modules(self) -> dict[str, list[str]]:
        """The modules of every adapter, in the order in which they were first seen."""
        return {adapter: list(held.rows) for adapter, held in self.adapters.items() if held.rows}

    def take(self, record: Record, arrays: Mapping[str, NDArray[Any]], naming: Naming) -> None:
        """A record with its arrays; it replaces an earlier one of the same probe and step."""
        step, firing = record.step, Firing(record.cost, record.error)
        others = self.firings.setdefault(step, {})
        for adapter in others.pop(record.probe, firing).adapters:
            self.adapters[adapter].forget(step)
        for table in record.tables:
            for column in table.columns:
                metric = naming(table.kind, column.name, column.labels)
                if metric is None:
                    continue
                adapter, family = (str(column.labels.get(label, NO_FAMILY)) for label in OWNER)
                if adapter not in firing.adapters:
                    _refuse_twice(adapter, step, others)
                    firing.adapters.append(adapter)
                self.adapters.setdefault(adapter, AdapterHistory()).add(step, metric, family, table.scopes, column)
        others[record.probe] = firing
        for name, values in arrays.items():
            self._add_list(step, firing, name, np.asarray(values, dtype=np.float64))
        for adapter in firing.adapters:
            self.adapters[adapter].explain_lists(step)

    def _add_list(self, step: int, firing: Firing, name: str, values: Floats) -> None:
        """An array called `<metric>/<adapter>/<module>`, or `<metric>/<module>` where no adapter's."""
        metric, _, owner = name.partition("/")
        for adapter in firing.adapters:
            module = owner.removeprefix(f"{adapter}/")
            if module in self.adapters[adapter].rows and (module != owner or adapter == NO_FAMILY):
                self.adapters[adapter].add_list(step, metric, module, values)
                return

    def forget(self, step: int) -> None:
        """Of two measurements at one step the later one counts."""
        self.firings.pop(step, None)
        for held in self.adapters.values():
            held.forget(step)

    def cost(self, step: int) -> float:
        return sum(firing.cost for firing in self.firings[step].values())

    def failed(self, step: int) -> str | None:
        """Why nothing, or not all, could be measured."""
        return "; ".join(firing.failed for firing in self.firings[step].values() if firing.failed) or None

    def measured(self, step: int, adapter: str) -> bool:
        """Whether there is anything of an adapter at a step."""
        return any(adapter in firing.adapters for firing in self.firings[step].values())

    def metrics(self, adapter: str, module: str | None = None) -> list[str]:
        """All that was ever measured of an adapter's modules, or was to be measured of one of them."""
        held = self.adapters.get(adapter, AdapterHistory())
        known = dict.fromkeys([*held.numbers, *held.lists])
        return [metric for metric in known if module is None or held.has(metric, module)]

    def read(self, step: int, adapter: str, metric: str, module: str) -> tuple[Value, str | None]:
        """A value and, where it is None, why."""
        if not self.measured(step, adapter):
            return None, self.failed(step) or NOT_RECORDED
        held = self.adapters[adapter]
        value = held.read(metric, module, step)
        return value, held.reason(metric, module, step) if value is None else None

    def course(self, adapter: str, module: str, metrics: Iterable[str]) -> dict[str, Any]:
        """Every metric of a module over the steps, with `steps`, and under `reasons` why a value is None, by step."""
        steps, reasons = self.steps, dict[str, dict[int, str]]()
        values: dict[str, Any] = {}
        for metric in metrics:
            cells = {step: self.read(step, adapter, metric, module) for step in steps}
            values[metric] = [value for value, _ in cells.values()]
            why = {step: reason for step, (_, reason) in cells.items() if reason is not None}
            reasons |= {metric: why} if why else {}
        return {"steps": steps, **values, "reasons": reasons}


def _refuse_twice(adapter: str, step: int, others: Mapping[str, Firing]) -> None:
    if any(adapter in firing.adapters for firing in others.values()):
        raise ValueError(
            f"two probes measured the adapter {adapter!r} at step {step}: where weights outside adapters "
            f"are tracked as well, no adapter may be called {NO_FAMILY!r}, which is the name of theirs"
        )
