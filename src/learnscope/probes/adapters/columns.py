"""The columns of an `AdapterSpectrum`: spectra, sizes beside the weights, and what only some families have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.model.adapters.extras import (
    dora_direction,
    dora_update,
    intruder_similarity,
    original_norm,
)
from learnscope.model.adapters.importance import ALLOCATOR, adalora_allocations
from learnscope.model.adapters.inventory import Adapter
from learnscope.quantities import Quantity
from learnscope.quantities.adapters import AdapterSpectrum as Q
from learnscope.record import Column, Label
from learnscope.tensor.adapters.spectrum import NOT_FINITE, Decomposed, decompose_factors, spectrum_numbers
from learnscope.tensor.adapters.subspace import INTRUDERS, SIMILARITY
from learnscope.tensor.context import plain
from learnscope.tensor.weights.singular import all_values

Cell = float | str
"""A number, or the reason for none."""
Labels = Mapping[str, Label]


class Spectra:
    """The updates of all adapters and their numbers, decomposed together: far cheaper than one by one."""

    def __init__(self, adapters: Sequence[Adapter], *, vectors: bool, tolerance: float) -> None:
        factors = {id(adapter): adapter.parts.factors for adapter in adapters}
        self._factored = [adapter for adapter in adapters if factors[id(adapter)] is not None]
        updates = [update for update in factors.values() if update is not None]
        self._spectra = decompose_factors(updates, vectors=vectors)
        self._place = {id(adapter): place for place, adapter in enumerate(self._factored)}
        # without any spectrum each number still has a row, null and with its reason
        values = [spectrum.values for spectrum in self._spectra] or [torch.zeros(1, dtype=torch.float64)]
        self._numbers = spectrum_numbers(values, tolerance=tolerance)

    def of(self, adapter: Adapter) -> Decomposed | None:
        place = self._place.get(id(adapter))
        return None if place is None else self._spectra[place]

    def number(self, adapter: Adapter, quantity: Quantity) -> float:
        """NaN if the singular values are not finite."""
        place = self._place.get(id(adapter))
        return math.nan if place is None else self._numbers.values[quantity.name][place]

    def arrays(self) -> dict[str, Tensor]:
        pairs = zip(self._factored, self._spectra, strict=True)
        return {f"singular_values/{adapter.name}/{adapter.scope}": spectrum.values for adapter, spectrum in pairs}

    def columns(self, members: Sequence[Adapter], labels: Labels) -> list[Column]:
        columns = []
        for name, values in self._numbers.values.items():
            reasons = self._numbers.reasons.get(name, {})
            cells: list[Cell] = []
            for adapter in members:
                place = self._place.get(id(adapter))
                cells.append(adapter.parts.reason or "" if place is None else reasons.get(place, values[place]))
            columns.append(Q.named(name).cells(cells, **labels))
        return columns


def plain_columns(members: Sequence[Adapter], labels: Labels) -> list[Column]:
    parts = [adapter.parts for adapter in members]
    scaling = [own.reason or "" if own.factors is None else own.factors.scaling for own in parts]
    return [
        Q.rank.cells(["it is a vector" if own.rank is None else own.rank for own in parts], **labels),
        Q.scaling.cells(scaling, **labels),
        Q.active.column([int(adapter.active) for adapter in members], labels),
        Q.merged.column([int(adapter.merged) for adapter in members], labels),
    ]


def adalora_columns(
    moment: Moment, members: Sequence[Adapter], labels: Labels, arrays: dict[str, Tensor], ways: dict[str, str]
) -> list[Column]:
    """Importance and ranks; `ways` is told how the scores of each module were computed.

    The allocator drops its scores when its schedule ends: those of the last measurement before that are kept.
    """
    allocations, state = adalora_allocations(moment.model, list(members)), moment.state
    sums: list[Cell] = []
    for adapter, own in zip(members, allocations, strict=True):
        key = f"{adapter.name}/{adapter.scope}"
        kept, since, scores, how = f"importance/{key}", f"importance_step/{key}", own.scores, own.how
        if how == ALLOCATOR:
            state |= {kept: scores.clone(), since: moment.step}
        elif kept in state:
            scores, how = state[kept], f"{ALLOCATOR} of step {state[since]}: it has none any more"
        arrays[f"importance_scores/{key}"], ways[adapter.scope] = scores, how
        sums.append(float(scores.double().sum()) if how.startswith(ALLOCATOR) else f"its scores are {how}")
    ranks = [own.rank for own in allocations]
    return [Q.importance_sum.cells(sums, **labels), Q.allocated_rank.column(ranks, labels)]


STATISTICS: tuple[tuple[Quantity, Callable[[Tensor], Tensor]], ...] = (
    (Q.vector_norm, torch.linalg.vector_norm),
    (Q.vector_mean, torch.mean),
    (Q.vector_std, lambda v: v.std(correction=0)),
    (Q.vector_min, torch.amin),
    (Q.vector_max, torch.amax),
)


def vector_columns(members: Sequence[Adapter], labels: Labels) -> list[Column]:
    columns = []
    for name in dict.fromkeys(vector for adapter in members for vector in adapter.parts.vectors):
        vectors = [adapter.parts.vectors.get(name) for adapter in members]
        own_labels, absent = {**labels, "vector": name}, f"it has no {name}"
        for quantity, statistic in STATISTICS:
            cells = [absent if pair is None else float(statistic(_wide(pair[0]))) for pair in vectors]
            columns.append(quantity.cells(cells, **own_labels))
        changes = [absent if pair is None else _distance(*pair) for pair in vectors]
        columns.append(Q.vector_change.cells(changes, **own_labels))
    return columns


def _wide(vector: Tensor) -> Tensor:
    return plain(vector).double().flatten()


def _distance(now: Tensor, then: Tensor | None) -> Cell:
    if then is None:
        return "what it began with is not known"
    return float(torch.linalg.vector_norm(_wide(now) - _wide(then).to(now.device)))


MERGED = (
    (Q.merged_update_largest_sv, Q.largest_sv), (Q.merged_update_effective_rank, Q.effective_rank),
    (Q.merged_update_stable_rank, Q.stable_rank), (Q.merged_update_nuclear_norm, Q.nuclear_norm),
)  # fmt: skip
"""What is recorded of the merged update, and which number of its spectrum each is."""


def relative_column(members: Sequence[Adapter], spectra: Spectra, labels: Labels, state: dict[str, Any]) -> Column:
    """‖ΔW‖_F/‖W‖_F; the weights' norms are stored in the state, so that later measurements read no weight."""
    return Q.relative_norm.cells([_relative(adapter, spectra, state) for adapter in members], **labels)


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
        Q.intruder_dimensions.cells(counts, **own_labels),
        Q.intruder_similarity.cells(smallest, **own_labels),
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
        Q.magnitude_norm.cells([float(torch.linalg.vector_norm(vector)) for vector in magnitudes], **labels),
        Q.direction_norm.cells([own if isinstance(own, str) else own.direction_norm for own in norms], **labels),
        Q.magnitude_direction_ratio.cells(ratios, **labels),
    ]
    if merged_update:
        merged = [own if isinstance(own, str) else own.merged_update_norm for own in norms]
        columns += [Q.merged_update_norm.cells(merged, **labels), *_merged_columns(members, labels, arrays)]
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
    return [quantity.cells([row[of.name] for row in rows], **labels) for quantity, of in MERGED]
