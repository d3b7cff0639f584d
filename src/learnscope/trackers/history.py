"""What trackers have seen: one look a logged step, made from a run's records. Pure data, no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.record import Label, Record

Floats = NDArray[np.float64]
Value = float | int | list[float] | None
Naming = Callable[[str, str, Mapping[str, Label]], str | None]
"""A metric's name from a table's kind and a column's name and labels; None for a column that is not kept."""

NOT_RECORDED = "it was not recorded at this step"
NOT_FINITE = "some of its values are not finite"
OWNER = ("adapter", "family")
"""Labels that say whose a row is; all others tell metrics of one name apart."""


@dataclass(slots=True)
class Block:
    """The numbers of one adapter's modules at one step."""

    modules: list[str]
    families: list[str]
    numbers: dict[str, Floats] = field(default_factory=dict)
    """By metric, one a module; NaN where there is none."""
    whole: set[str] = field(default_factory=set)
    """Metrics that count something."""
    lists: dict[str, dict[str, Floats]] = field(default_factory=dict)
    """By metric and module: singular values, importance scores."""
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    """By metric and module, why there is no number."""

    def read(self, metric: str, module: str) -> Value:
        """A number, a list, or None."""
        if metric in self.lists:
            found = self.lists[metric].get(module)
            return None if found is None else [float(one) for one in found]
        if metric not in self.numbers or module not in self.modules:
            return None
        number = float(self.numbers[metric][self.modules.index(module)])
        if np.isnan(number):
            return None
        return int(number) if metric in self.whole else number

    def reason(self, metric: str, module: str) -> str:
        """Why `read` gives None."""
        return self.reasons.get(metric, {}).get(module, NOT_RECORDED)

    def has(self, metric: str, module: str) -> bool:
        """Whether it was to be measured: there is a value, or a reason for none."""
        return self.read(metric, module) is not None or self.reason(metric, module) != NOT_RECORDED

    @property
    def metrics(self) -> list[str]:
        return [*self.numbers, *self.lists]


@dataclass(slots=True)
class Look:
    """One logged step: what was measured, by adapter, and what it cost in seconds."""

    step: int
    cost: float
    blocks: dict[str, Block] = field(default_factory=dict)
    failed: str | None = None
    """Why nothing could be measured."""


Looks = Mapping[int, Look]
"""By step, in the order of steps."""


def plain_name(kind: str, name: str, labels: Mapping[str, Label]) -> str | None:
    """Of modules and tensors: a column's name, with its labels where they tell it from others of that name.

    >>> plain_name("module", "left_drift", {"adapter": "default", "family": "lora", "since": "first"})
    'left_drift/first'
    """
    if kind not in ("module", "tensor"):
        return None
    return "/".join([name, *(str(value) for label, value in labels.items() if label not in OWNER)])


def ordered(looks: Iterable[Look]) -> dict[int, Look]:
    """By step; of two looks at one step the later one."""
    return dict(sorted({look.step: look for look in looks}.items()))


def looks_of(
    records: Iterable[Record],
    arrays: Callable[[Record], Mapping[str, NDArray[Any]]],
    naming: Mapping[str, Naming],
) -> dict[int, Look]:
    """The looks that records hold; `naming` is by probe, and `arrays` reads those of a record.

    A record of a probe replaces an earlier one of the same probe and step.
    """
    parts: dict[int, dict[str, Look]] = {}
    for record in records:
        parts.setdefault(record.step, {})[record.probe] = _look(record, arrays(record), naming[record.probe])
    return ordered(_together(list(of.values())) for of in parts.values())


def _look(record: Record, arrays: Mapping[str, NDArray[Any]], naming: Naming) -> Look:
    look = Look(record.step, record.cost, failed=record.error)
    for table in record.tables:
        for column in table.columns:
            metric = naming(table.kind, column.name, column.labels)
            if metric is None:
                continue
            adapter = str(column.labels.get("adapter", NO_FAMILY))
            family = str(column.labels.get("family", NO_FAMILY))
            _add(look, adapter, family, metric, table.scopes, column.values, column.status)
    for name, values in arrays.items():
        _add_list(look, name, np.asarray(values, dtype=np.float64))
    for block in look.blocks.values():
        _explain_lists(block)
    return look


def _add(
    look: Look, adapter: str, family: str, metric: str, scopes: Sequence[str], values: Sequence[float | int | None],
    status: Mapping[int, str],
) -> None:  # fmt: skip
    block = look.blocks.setdefault(adapter, Block([], []))
    known = set(block.modules)
    fresh = [scope for scope in scopes if scope not in known]
    if fresh:
        block.modules += fresh
        block.families += [family] * len(fresh)
        for name, row in block.numbers.items():
            block.numbers[name] = np.concatenate([row, np.full(len(fresh), np.nan)])
    row = block.numbers.setdefault(metric, np.full(len(block.modules), np.nan))
    if list(scopes) == block.modules:
        places: Any = slice(None)
    else:
        where = {module: place for place, module in enumerate(block.modules)}
        places = [where[scope] for scope in scopes]
    row[places] = [np.nan if value is None else value for value in values]
    if all(value is None or isinstance(value, int) for value in values):
        block.whole.add(metric)
    else:
        block.whole.discard(metric)
    for place, value in enumerate(values):
        if value is None:
            block.reasons.setdefault(metric, {})[scopes[place]] = status.get(place, NOT_RECORDED)


def _add_list(look: Look, name: str, values: Floats) -> None:
    """An array called `<metric>/<adapter>/<module>`, or `<metric>/<module>` where no adapter's."""
    metric, _, owner = name.partition("/")
    for adapter, block in look.blocks.items():
        module = owner.removeprefix(f"{adapter}/")
        if module in block.modules and (module != owner or adapter == NO_FAMILY):
            if len(values) and np.isfinite(values).all():
                block.lists.setdefault(metric, {})[module] = values
            else:
                block.lists.setdefault(metric, {})
                block.reasons.setdefault(metric, {})[module] = NOT_FINITE
            return


EXPLAINS = {"singular_values": "largest_sv", "importance_scores": "importance_sum"}
"""A number that is null, with its reason, wherever the list is not there."""


def _explain_lists(block: Block) -> None:
    for metric, number in EXPLAINS.items():
        if number not in block.numbers:
            continue
        held = block.lists.setdefault(metric, {})
        why = block.reasons.get(number, {})
        missing = {module: why[module] for module in block.modules if module not in held and module in why}
        if missing:
            block.reasons.setdefault(metric, {}).update(missing)


def _together(parts: Sequence[Look]) -> Look:
    """The looks of several probes at one step as one."""
    whole = Look(parts[0].step, sum(part.cost for part in parts))
    failures = [part.failed for part in parts if part.failed]
    whole.failed = "; ".join(failures) or None
    for part in parts:
        for adapter, block in part.blocks.items():
            if adapter in whole.blocks:
                raise ValueError(
                    f"two probes measured the adapter {adapter!r} at step {part.step}: where weights outside adapters "
                    f"are tracked as well, no adapter may be called {NO_FAMILY!r}, which is the name of theirs"
                )
            whole.blocks[adapter] = block
    return whole


def adapters_of(looks: Looks) -> dict[str, list[str]]:
    """The modules of every adapter, in the order in which they were first seen."""
    found: dict[str, dict[str, None]] = {}
    for look in looks.values():
        for adapter, block in look.blocks.items():
            found.setdefault(adapter, {}).update(dict.fromkeys(block.modules))
    return {adapter: list(modules) for adapter, modules in found.items()}


def metrics_of(looks: Looks, adapter: str, module: str | None = None) -> list[str]:
    """All that was ever measured of an adapter's modules, or was to be measured of one of them."""
    blocks = [look.blocks[adapter] for look in looks.values() if adapter in look.blocks]
    known = dict.fromkeys(metric for block in blocks for metric in block.metrics)
    if module is None:
        return list(known)
    return [metric for metric in known if any(block.has(metric, module) for block in blocks)]


def read(look: Look, adapter: str, metric: str, module: str) -> tuple[Value, str | None]:
    """A value and, where it is None, why."""
    block = look.blocks.get(adapter)
    if block is None:
        return None, look.failed or NOT_RECORDED
    value = block.read(metric, module)
    return value, block.reason(metric, module) if value is None else None


def course(looks: Looks, adapter: str, module: str, metrics: Iterable[str]) -> dict[str, Any]:
    """Every metric of a module over the steps, with `steps`, and under `reasons` why a value is None, by step."""
    found: dict[str, Any] = {"steps": list(looks)}
    reasons: dict[str, dict[int, str]] = {}
    for metric in metrics:
        cells = [read(look, adapter, metric, module) for look in looks.values()]
        found[metric] = [value for value, _ in cells]
        why = {step: reason for step, (_, reason) in zip(looks, cells, strict=True) if reason is not None}
        if why:
            reasons[metric] = why
    return {**found, "reasons": reasons}
