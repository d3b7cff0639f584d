"""Updates beside the weights they change: how large they are, and whether they bring directions of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from learnscope.model.adapters.bases import intruders_of, original_norm
from learnscope.model.adapters.extras import dora_direction, dora_update
from learnscope.model.adapters.inventory import Adapter
from learnscope.probes.adapters.spectra import Spectra
from learnscope.quantities import Quantity
from learnscope.quantities.adapters import AdapterSpectrum as Q
from learnscope.record import Column, Label
from learnscope.tensor.adapters.spectrum import NOT_FINITE, spectrum_numbers
from learnscope.tensor.adapters.subspace import INTRUDERS, SIMILARITY
from learnscope.tensor.context import plain
from learnscope.tensor.weights.singular import all_values

Labels = Mapping[str, str]
Cell = float | str
"""A number, or the reason for none."""
MERGED = (
    (Q.merged_update_largest_sv, Q.largest_sv), (Q.merged_update_effective_rank, Q.effective_rank),
    (Q.merged_update_stable_rank, Q.stable_rank), (Q.merged_update_nuclear_norm, Q.nuclear_norm),
)  # fmt: skip
"""What is recorded of the whole update that merging makes, and which number of its spectrum each is."""


def column(quantity: Quantity, cells: Sequence[Cell], labels: Mapping[str, Label]) -> Column:
    reasons = {place: cell for place, cell in enumerate(cells) if isinstance(cell, str)}
    return quantity.column([None if isinstance(cell, str) else cell for cell in cells], labels, reasons)


def relative_column(members: Sequence[Adapter], spectra: Spectra, labels: Labels, state: dict[str, Any]) -> Column:
    """‖ΔW‖_F/‖W‖_F; the weights' norms are kept in the state, so that later firings pass over no weight."""
    return column(Q.relative_norm, [_relative(one, spectra, state) for one in members], labels)


def _relative(one: Adapter, spectra: Spectra, state: dict[str, Any]) -> Cell:
    if spectra.of(one) is None:
        return one.parts.reason or "it has no factors"
    key = f"weight_norm/{one.name}/{one.scope}"
    if key not in state:
        norm = original_norm(one)
        if isinstance(norm, str):
            return norm
        state[key] = norm
    if not math.isfinite(state[key]):
        return "its weight has entries that are not finite"
    if not state[key]:
        return "its weight is zero"
    update = spectra.number(one, Q.frobenius_norm)
    return NOT_FINITE if math.isnan(update) else update / state[key]


def intruder_columns(members: Sequence[Adapter], labels: Labels) -> list[Column]:
    found = [intruders_of(one) for one in members]
    marked: dict[str, Label] = {**labels, "k": INTRUDERS, "epsilon": SIMILARITY}
    counts = [one if isinstance(one, str) else one.count for one in found]
    matches = [one if isinstance(one, str) else float(one.similarity.min()) for one in found]
    return [column(Q.intruder_dimensions, counts, marked), column(Q.intruder_similarity, matches, marked)]


def dora_columns(
    members: Sequence[Adapter], labels: Labels, merged_update: bool, arrays: dict[str, Tensor]
) -> list[Column]:
    """Of magnitude and direction; with `merged_update` of what merging would add, which is built in full."""
    vectors = [plain(one.parts.vectors["magnitude"][0]).double() for one in members]
    found = [dora_direction(one) for one in members]
    ratios = [
        one if isinstance(one, str) else one.magnitude_norm / one.direction_norm if one.direction_norm else math.nan
        for one in found
    ]
    columns = [
        column(Q.magnitude_norm, [float(torch.linalg.vector_norm(one)) for one in vectors], labels),
        column(Q.direction_norm, [one if isinstance(one, str) else one.direction_norm for one in found], labels),
        column(Q.magnitude_direction_ratio, ratios, labels),
    ]
    if merged_update:
        norms = [one if isinstance(one, str) else one.merged_update_norm for one in found]
        columns += [column(Q.merged_update_norm, norms, labels), *_merged_columns(members, labels, arrays)]
    return columns


def _merged_columns(members: Sequence[Adapter], labels: Labels, arrays: dict[str, Tensor]) -> list[Column]:
    rows: list[dict[str, Cell]] = []
    for one in members:  # one at a time: each is as large as its weight
        values = _merged_values(one)
        if isinstance(values, str):
            rows.append({of.name: values for _, of in MERGED})
            continue
        arrays[f"merged_singular_values/{one.name}/{one.scope}"] = values
        found = spectrum_numbers([values])
        reasons = {name: found.reasons[name][0] for name in found.reasons}
        rows.append({of.name: reasons.get(of.name) or found.values[of.name][0] for _, of in MERGED})
    return [column(quantity, [row[of.name] for row in rows], labels) for quantity, of in MERGED]


def _merged_values(one: Adapter) -> Tensor | str:
    update = dora_update(one)
    if isinstance(update, str):
        return update
    (values,) = all_values([update])
    return "what merging would add is not finite" if values is None else values
