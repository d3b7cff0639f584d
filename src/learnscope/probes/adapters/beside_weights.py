"""Updates beside the weights they change: how large they are, and whether they bring directions of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnscope.model.adapters.extras import dora_direction, dora_update, intruder_similarity, original_norm
from learnscope.model.adapters.inventory import Adapter
from learnscope.probes.adapters.columns import Cell, Labels, Spectra, cell_column
from learnscope.quantities.adapters import AdapterSpectrum as Q
from learnscope.record import Column
from learnscope.tensor.adapters.spectrum import NOT_FINITE, spectrum_numbers
from learnscope.tensor.adapters.subspace import INTRUDERS, SIMILARITY
from learnscope.tensor.context import plain
from learnscope.tensor.weights.singular import all_values

MERGED = (
    (Q.merged_update_largest_sv, Q.largest_sv), (Q.merged_update_effective_rank, Q.effective_rank),
    (Q.merged_update_stable_rank, Q.stable_rank), (Q.merged_update_nuclear_norm, Q.nuclear_norm),
)  # fmt: skip
"""What is recorded of the merged update, and which number of its spectrum each is."""


def relative_column(members: Sequence[Adapter], spectra: Spectra, labels: Labels, state: dict[str, Any]) -> Column:
    """‖ΔW‖_F/‖W‖_F; the weights' norms are stored in the state, so that later measurements read no weight."""
    return cell_column(Q.relative_norm, [_relative(adapter, spectra, state) for adapter in members], labels)


def _relative(adapter: Adapter, spectra: Spectra, state: dict[str, Any]) -> Cell:
    if adapter.parts.factors is None:
        return adapter.parts.reason or "it has no factors"
    key = f"weight_norm/{adapter.name}/{adapter.scope}"
    if key not in state:
        norm = original_norm(adapter)
        if isinstance(norm, str):
            return norm
        state[key] = norm
    if not math.isfinite(state[key]):
        return "its weight has entries that are not finite"
    if not state[key]:
        return "its weight is zero"
    update = spectra.number(adapter, Q.frobenius_norm)
    return NOT_FINITE if math.isnan(update) else update / state[key]


def intruder_columns(members: Sequence[Adapter], labels: Labels) -> list[Column]:
    similarities = [intruder_similarity(adapter) for adapter in members]
    own_labels = {**labels, "k": INTRUDERS, "epsilon": SIMILARITY}
    counts = [value if isinstance(value, str) else int((value < SIMILARITY).sum()) for value in similarities]
    smallest = [value if isinstance(value, str) else float(value.min()) for value in similarities]
    return [
        cell_column(Q.intruder_dimensions, counts, own_labels),
        cell_column(Q.intruder_similarity, smallest, own_labels),
    ]


def dora_columns(
    members: Sequence[Adapter], labels: Labels, merged_update: bool, arrays: dict[str, Tensor]
) -> list[Column]:
    """Magnitude and direction; with `merged_update` also what merging would add, which is built in full."""
    magnitudes = [plain(adapter.parts.vectors["magnitude"][0]).double() for adapter in members]
    norms = [dora_direction(adapter) for adapter in members]
    ratios = [
        own if isinstance(own, str) else own.magnitude_norm / own.direction_norm if own.direction_norm else math.nan
        for own in norms
    ]
    columns = [
        cell_column(Q.magnitude_norm, [float(torch.linalg.vector_norm(vector)) for vector in magnitudes], labels),
        cell_column(Q.direction_norm, [own if isinstance(own, str) else own.direction_norm for own in norms], labels),
        cell_column(Q.magnitude_direction_ratio, ratios, labels),
    ]
    if merged_update:
        merged = [own if isinstance(own, str) else own.merged_update_norm for own in norms]
        columns += [cell_column(Q.merged_update_norm, merged, labels), *_merged_columns(members, labels, arrays)]
    return columns


def _merged_columns(members: Sequence[Adapter], labels: Labels, arrays: dict[str, Tensor]) -> list[Column]:
    rows: list[dict[str, Cell]] = []
    for adapter in members:  # one at a time: each is as large as its weight
        values = dora_update(adapter)
        if not isinstance(values, str):
            (spectrum,) = all_values([values])
            values = "what merging would add is not finite" if spectrum is None else spectrum
        if isinstance(values, str):
            rows.append({of.name: values for _, of in MERGED})
            continue
        arrays[f"merged_singular_values/{adapter.name}/{adapter.scope}"] = values
        numbers = spectrum_numbers([values])
        reasons = {name: numbers.reasons[name][0] for name in numbers.reasons}
        rows.append({of.name: reasons.get(of.name) or numbers.values[of.name][0] for _, of in MERGED})
    return [cell_column(quantity, [row[of.name] for row in rows], labels) for quantity, of in MERGED]
