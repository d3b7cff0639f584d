"""The numbers of one quantity as arrays, without a table in between: what series and grids are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.record import nonfinite
from learnscope.store.columnar.columns import Chosen, Columns
from learnscope.store.columnar.forms import FormColumn
from learnscope.store.frame import FIXED_COLUMNS

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Numbers:
    """One for each step, scope and set of labels, in the order of steps: the rows of `gather.rows`."""

    steps: Ints
    values: NDArray[np.float64]
    scope: Ints
    """Of each, the place in `scopes`."""
    scopes: list[str]
    status: Ints
    """Of each, the place in `statuses`."""
    statuses: list[str | None]
    probe: str
    """The label of the probe of the last one."""

    @property
    def reasons(self) -> list[str | None]:
        """The status of each."""
        reasons: list[str | None] = np.array(self.statuses, object)[self.status].tolist()
        return reasons

    @property
    def broken(self) -> NDArray[np.bool_]:
        """Which were measured and are not finite."""
        bad = np.array([nonfinite(status) is not None for status in self.statuses], bool)
        broken: NDArray[np.bool_] = bad[self.status]
        return broken

    def in_order_of_appearance(self) -> list[str]:
        """The scopes by their first number."""
        codes, first = np.unique(self.scope, return_index=True)
        return [self.scopes[code] for code in codes[np.argsort(first)]]


class _Codes:
    """Things as numbers, in the order in which they were first met."""

    def __init__(self) -> None:
        self.code_of: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        return self.code_of.setdefault(thing, len(self.code_of))


def numbers_of(
    columns: Columns, probes: Sequence[str], name: str, kind: str, conditions: Mapping[str, object]
) -> Numbers | None:
    """The numbers of a name that these probes recorded; None if some records have to be read one by one."""
    if any(columns.loose(probe) for probe in probes) or {*FIXED_COLUMNS} & conditions.keys() - {"scope"}:
        return None
    parts = [
        (number, chosen, [c for c in chosen.form.columns if (c.name, c.kind) == (name, kind) and c.scopes])
        for number, probe in enumerate(probes)
        for chosen in columns.chosen(probe)
    ]
    for label, value in conditions.items():
        if label == "scope":
            parts = [(n, chosen, [_only(c, value) for c in wanted if value in c.scopes]) for n, chosen, wanted in parts]
        elif any(column.labels.get(label) is not None for _, _, wanted in parts for column in wanted):
            parts = [(n, chosen, [c for c in wanted if c.labels.get(label) == value]) for n, chosen, wanted in parts]
    scopes, statuses, keys = _Codes(), _Codes(), _Codes()
    rows = [_rows(number, chosen, wanted, scopes, statuses, keys) for number, chosen, wanted in parts if wanted]
    if not rows:
        empty = np.zeros(0, np.int64)
        return Numbers(empty, np.zeros(0), empty, [], empty, [], "")
    probe, order, step, value, scope, status, key = (np.concatenate(each) for each in zip(*rows, strict=True))
    kept = _last_of_each(probe, order, step, key)
    return Numbers(
        step[kept], value[kept], scope[kept], list(scopes.code_of), status[kept], list(statuses.code_of),
        probes[int(probe[kept[-1]])],
    )  # fmt: skip


def _only(column: FormColumn, scope: Any) -> FormColumn:
    """The part of a column that is about one scope."""
    places = [place for place, here in enumerate(column.scopes) if here == scope]
    status = {new: column.status[place] for new, place in enumerate(places) if place in column.status}
    return replace(column, scopes=[scope] * len(places), places=column.places[places], status=status)


def _rows(
    number: int, chosen: Chosen, wanted: Sequence[FormColumn], scopes: _Codes, statuses: _Codes, keys: _Codes
) -> tuple[NDArray[Any], ...]:
    """The columns of a block: of each number its probe, order, step, value, scope, status, and what it is of."""
    labels = [tuple(sorted((k, v) for k, v in column.labels.items() if v is not None)) for column in wanted]
    cells = [
        (scopes(scope), statuses(column.status.get(place)), keys((scope, of)))
        for column, of in zip(wanted, labels, strict=True)
        for place, scope in enumerate(column.scopes)
    ]
    order, step = chosen.order, chosen.header("step").astype(np.int64)
    values = chosen.rows([place for column in wanted for place in column.places.tolist()])
    n, width = len(order), len(cells)
    scope, status, key = (np.tile(np.array(codes, np.int32), n) for codes in zip(*cells, strict=True))
    each = (np.repeat(order, width), np.repeat(step, width))
    return (np.full(n * width, number, np.int32), *each, values.T.ravel(), scope, status, key)


def _last_of_each(probe: Ints, order: Ints, step: Ints, key: Ints) -> Ints:
    """The places of the last of each step and key, in the order of steps, and within one in that of writing."""
    place = np.arange(len(step))
    if (np.diff(probe) < 0).any() or (np.diff(order)[np.diff(probe) == 0] < 0).any():
        place = np.lexsort((order, probe))
    step, key = step[place], key[place]
    if (np.diff(step) >= 0).all():  # the usual case: no need to sort, and doubles stand side by side
        same = np.flatnonzero(np.diff(step) == 0)
        if not len(same) or (key[same] < key[same + 1]).all():
            return place
    by_key = np.lexsort((np.arange(len(step)), key, step))
    last = np.ones(len(step), bool)
    last[:-1] = (np.diff(step[by_key]) != 0) | (np.diff(key[by_key]) != 0)
    chosen = np.sort(by_key[last])
    kept: Ints = place[chosen[np.argsort(step[chosen], kind="stable")]]
    return kept
