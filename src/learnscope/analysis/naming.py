"""From tables to the flat keys that a logger takes: `param_change/layer_3/mean_abs_delta`, `sparse/kl_at_1e-06`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from learnscope.names import resolve
from learnscope.quantities.updates import ParameterChange, SparseQuality
from learnscope.record import Column, Label, Row, Table, nonfinite

_CHANGE_NAMES = {
    ParameterChange.l1.name: "norm_l1", ParameterChange.l2.name: "norm_l2", ParameterChange.max.name: "norm_max",
    ParameterChange.mean_abs.name: "mean_abs_delta",
}  # fmt: skip
_OF_A_PART = frozenset(
    quantity.name
    for quantity in (
        ParameterChange.mean_abs, ParameterChange.l2, ParameterChange.update_to_weight, ParameterChange.visible_share,
        ParameterChange.absorbed_share, ParameterChange.decay_absorbed_share,
    )
)  # fmt: skip
_SILENT = ("dtype", "unit", "origin", "function", "kl_bound")
"""Labels that are the same for every number of a name, or only explain it: not part of a key."""

_USUAL: dict[str, Label] = {"stage": "stepped", "rule": "adam", "summary": "median"}
"""The usual values of labels, which are not part of a key."""


def threshold_names(thresholds: Iterable[float]) -> dict[float, str]:
    """`1e-06` for a threshold, with as many digits as it takes to tell alike ones apart.

    >>> threshold_names([1e-6, 1.5e-6, 2e-6])
    {1e-06: '1e-06', 1.5e-06: '1.5e-06', 2e-06: '2.0e-06'}
    """
    values = list(dict.fromkeys(thresholds))
    digits = dict.fromkeys(values, 0)
    for _ in range(17):
        names = {value: f"{value:.{digits[value]}e}" for value in values}
        seen = Counter(names.values())
        if len(seen) == len(values):
            break
        digits = {value: digits[value] + (seen[names[value]] > 1) for value in values}
    return names


def parameter_change_keys(tables: Iterable[Table], thresholds: Sequence[float]) -> dict[str, float]:
    """The documented keys of the parameter change; `sparsity` of a layer or component is at the first threshold."""
    names = threshold_names(thresholds)
    keys: dict[str, float] = {}
    for table in tables:
        scopes = _scope_keys(table)
        for row in table.rows():
            scope, value = scopes[row.scope], number(row)
            if row.name == ParameterChange.sparsity.name:
                threshold = float(row.labels["threshold"])
                if table.kind != "model":
                    keys |= {f"{scope}sparsity": value} if threshold == thresholds[0] else {}
                    continue
                keys[f"sparsity_at_{names[threshold]}"] = value
                keys[f"changed_ratio_at_{names[threshold]}"] = 1 - value
            elif table.kind == "model" or row.name in _OF_A_PART:
                keys[f"{scope}{_CHANGE_NAMES.get(row.name, row.name)}"] = value
    return keys


def sparse_quality_keys(tables: Iterable[Table], thresholds: Sequence[float]) -> dict[str, float]:
    """The documented keys of the sparse quality: `kl_at_1e-06`, `kl_at_1e-06_random`, …"""
    names = threshold_names(thresholds)
    keys: dict[str, float] = {}
    for row in (row for table in tables for row in table.rows()):
        mask, value = str(row.labels["mask"]), number(row)
        end = f"_at_{names[float(row.labels['threshold'])]}" + ("" if mask == "magnitude" else f"_{mask}")
        if row.name == SparseQuality.kept_share.name:
            keys |= {f"kept_ratio{end}": value, f"unchanged_ratio{end}": 1 - value}
        else:
            keys[f"{row.name}{end}"] = value
    return keys


def plain_keys(tables: Iterable[Table]) -> dict[str, float]:
    """A key for every number: the scope, the name, and the labels that tell two of one name apart."""
    keys: dict[str, float] = {}
    for table in tables:
        scopes = _scope_keys(table)
        for row in table.rows():
            end = "".join(_suffix(label, value) for label, value in row.labels.items())
            keys[f"{scopes[row.scope]}{row.name}{end}"] = number(row)
    return keys


def number(row: Row) -> float:
    """A number that can be logged and formatted; NaN where nothing was measured."""
    if row.value is None:
        return float(nonfinite(row.status) or "nan")
    return row.value  # type: ignore[no-any-return]


def reasons(tables: Iterable[Table], keys: Callable[[list[Table]], Mapping[str, float]]) -> dict[str, str]:
    """Why a key is NaN, for those whose table gives a status."""
    reasons_by_key: dict[str, str] = {}
    for table in tables:
        for column in table.columns:
            for status in dict.fromkeys(column.status.values()):
                # of all scopes, as a scope's key depends on the others: NaN where this is the status, else 0
                values = [math.nan if column.status.get(i) == status else 0.0 for i in range(len(column.values))]
                named = keys([Table(table.kind, table.scopes, [Column(column.name, values, column.labels)])])
                reasons_by_key |= {key: status for key, value in named.items() if math.isnan(value)}
    return reasons_by_key


def _scope_keys(table: Table) -> dict[str, str]:
    """The part of a key for each scope, with its slash."""
    if table.kind == "model":
        return dict.fromkeys(table.scopes, "")
    if table.kind != "layer":
        return {scope: f"{table.kind}/{scope}/" for scope in table.scopes}
    names = {scope: resolve(f"{scope}.weight") for scope in table.scopes}
    # an encoder's and a decoder's third layer are not the same
    often = Counter(name.index for scope, name in names.items() if name.layer == scope)
    numbered = {scope: name.layer == scope and name.index is not None for scope, name in names.items()}
    return {
        scope: f"layer_{name.index if numbered[scope] and often[name.index] == 1 else scope}/"
        for scope, name in names.items()
    }


def _suffix(label: str, value: Label) -> str:
    if label in _SILENT or value == _USUAL.get(label):
        return ""
    if label in ("stage", "summary", "rule"):
        return f"_{value}"
    if label == "direction":
        return f"_along_{value}"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"_at_{shown}" if label == "at" else f"_at_{label}_{shown}"
