"""What adapters add to their weights: spectra, and how far their directions have turned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from learnscope.model.adapter_extras import NOT_ALLOCATED, adalora_allocations, dora_direction
from learnscope.model.adapters import Adapter, Adapters, find_adapters
from learnscope.moment import Moment
from learnscope.probes.adapter_drift import Kept, drift_columns
from learnscope.probes.adapter_starts import open_adapters
from learnscope.probing import Probe, ProbeWarning
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.context import plain
from learnscope.tensor.spectrum import TOLERANCE, Decomposed, decompose_factors, spectrum_numbers

Labels = dict[str, str]


class AdapterSpectrum(Probe):
    """The update ΔW of every adapter (PEFT), from its small factors: ΔW itself is never built.

    ΔW is scaling·B A (LoRA, rsLoRA, LoRA+, LoRA-FA, DoRA before its magnitude), less the B₀A₀ that PiSSA and MiLoRA
    begin with, P diag(E) Q (AdaLoRA), or diag(λ_b) B diag(λ_d) A (VeRA). B₀A₀ is kept when a session opens before the
    first step, and saved with it (`learnscope.remember_start` keeps it earlier). IA³ and LayerNorm tuning add no
    matrix: their spectrum is null and says so, and their vectors are described instead.
    All rows carry the labels `adapter`, its name in PEFT, and `family`. Adapters that are inactive, disabled or merged
    are measured as well.

    | name | kind | meaning |
    |---|---|---|
    | `largest_sv`, `smallest_sv`, `spectral_gap`, `leading_gap`, `condition_number`, `numerical_rank`, \
`effective_rank`, `rank_utilisation`, `stable_rank`, `participation_ratio`, `nuclear_norm`, `frobenius_norm`, \
`top1_sv_ratio`, `top1_nuclear_share`, … 5, 10 | module | of ΔW: see `learnscope.tensor.spectrum.spectrum_numbers` |
    | `rank`, `scaling`, `active`, `merged` | module | r; what PEFT multiplies by; 1 if so, else 0 |
    | `left_angle`, `right_angle` | module | largest principal angle between the span of ΔW's left (right) singular \
vectors now and then, radians; label `since`: previous or first measurement |
    | `left_drift`, `right_drift` | module | √(mean sin²θ) of all principal angles: 0 the same span, 1 orthogonal |
    | `magnitude_norm`, `direction_norm`, `magnitude_direction_ratio` | module | DoRA: ‖m‖; ‖W + ΔW‖_F; their ratio |
    | `merged_update_norm` | module | DoRA, with `merged_update`: Frobenius norm of what merging adds to W |
    | `importance_sum`, `allocated_rank` | module | AdaLoRA: sum of the triplets' importance; how many are kept |
    | `vector_norm`, `vector_mean`, `vector_std`, `vector_min`, `vector_max`, `vector_change` | module | of each \
vector that an adapter trains (label `vector`); the deviation is over all entries, the change ‖v − v at the start‖ |

    Arrays: `singular_values/<adapter>/<module>`, and `importance_scores/<adapter>/<module>` for AdaLoRA. Notes:
    `families`, and where there are some `unknown` (adapters of a family that is not known here, not measured), `tied`.

    The spans of the first and the last measurement are kept, and saved with the session: 2·(m + n)·r float64 numbers
    a module. Modules that do not fit into `memory_mb` together with those before them have no drift.
    """

    every: int = 100
    tolerance: float = TOLERANCE
    """Singular values at most this share of the largest count as 0 for ranks and condition numbers."""
    drift: bool = True
    merged_update: bool = False
    memory_mb: float = 256.0

    reads_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"AdapterSpectrum(tolerance={self.tolerance!r}): tolerance is a share from 0 to below 1")
        if not self.memory_mb >= 0:
            raise ValueError(f"AdapterSpectrum(memory_mb={self.memory_mb!r}): memory_mb is a number from 0")

    def open(self, moment: Moment) -> None:
        open_adapters(moment)

    def measure(self, moment: Moment) -> Measurement:
        adapters = find_adapters(moment.model, moment.optimizers)
        _warn_of_unknown(adapters, moment.state)
        factored = [one for one in adapters.found if one.parts.factors is not None]
        updates = [one.parts.factors for one in factored if one.parts.factors is not None]
        spectra = {
            id(one): found for one, found in zip(factored, decompose_factors(updates, vectors=self.drift), strict=True)
        }
        kept = Kept(moment.state, self.memory_mb, self.tolerance)
        tables: list[Table] = []
        arrays = {f"singular_values/{one.name}/{one.scope}": spectra[id(one)].values for one in factored}
        for (name, family), members in _grouped(adapters.found).items():
            labels = {"adapter": name, "family": family}
            columns = [*_spectrum_columns(members, spectra, labels, self.tolerance), *_plain_columns(members, labels)]
            if self.drift and any(id(one) in spectra for one in members):
                columns += drift_columns(members, spectra, labels, kept)
            if family == "dora":
                columns += _dora_columns(members, labels, self.merged_update)
            if family == "adalora":
                columns += _adalora_columns(moment, members, labels, arrays)
            columns += _vector_columns(members, labels)
            tables.append(Table("module", [one.scope for one in members], columns))
        kept.measured_at(moment.step)
        return Measurement(tables, arrays, _notes(adapters, kept))


def _grouped(found: Sequence[Adapter]) -> dict[tuple[str, str], list[Adapter]]:
    groups: dict[tuple[str, str], list[Adapter]] = {}
    for one in found:
        groups.setdefault((one.name, one.parts.family), []).append(one)
    return groups


def _warn_of_unknown(adapters: Adapters, state: dict[str, Any]) -> None:
    told = state.setdefault("unknown", [])
    fresh = [family for family in adapters.unknown if family not in told]
    if fresh:
        told += fresh
        known = "LoRA and its kin, AdaLoRA, VeRA, IA³ and LayerNorm tuning"
        warnings.warn(
            f"AdapterSpectrum does not know {', '.join(fresh)}: these adapters are not measured. It knows {known}.",
            ProbeWarning,
            stacklevel=3,
        )


def _notes(adapters: Adapters, kept: Kept) -> dict[str, Any]:
    families: dict[str, dict[str, int]] = {}
    for (name, family), members in _grouped(adapters.found).items():
        families.setdefault(name, {})[family] = len(members)
    tied = {one.scope: one.tied_to for one in adapters.found if one.tied_to}
    notes: dict[str, Any] = {"families": families, **kept.notes}
    notes |= {"unknown": adapters.unknown} if adapters.unknown else {}
    return notes | ({"tied": tied} if tied else {})


def _spectrum_columns(
    members: Sequence[Adapter], spectra: dict[int, Decomposed], labels: Labels, tolerance: float
) -> list[Column]:
    places = [place for place, one in enumerate(members) if id(one) in spectra]
    # without a spectrum at all there is still a row for each number, null and with its reason
    stand_in = torch.zeros(1, dtype=torch.float64)
    values = [spectra[id(members[place])].values for place in places]
    numbers = spectrum_numbers(values or [stand_in], tolerance=tolerance)
    none = {place: one.parts.reason or "" for place, one in enumerate(members) if id(one) not in spectra}
    columns = []
    for name, found in numbers.values.items():
        row: list[float | None] = [None] * len(members)
        status = dict(none)
        for at, place in enumerate(places):
            row[place] = found[at]
            reason = numbers.reasons.get(name, {}).get(at)
            if reason is not None:
                row[place], status[place] = None, reason
        columns.append(Column(name, row, labels, status))
    return columns


def _plain_columns(members: Sequence[Adapter], labels: Labels) -> list[Column]:
    none = {place: one.parts.reason or "" for place, one in enumerate(members) if one.parts.factors is None}
    scaling = [None if one.parts.factors is None else one.parts.factors.scaling for one in members]
    vectors = {place: "it is a vector" for place, one in enumerate(members) if one.parts.rank is None}
    return [
        Column("rank", [one.parts.rank for one in members], labels, vectors),
        Column("scaling", scaling, labels, none),
        Column("active", [int(one.active) for one in members], labels),
        Column("merged", [int(one.merged) for one in members], labels),
    ]


def _dora_columns(members: Sequence[Adapter], labels: Labels, merged_update: bool) -> list[Column]:
    found = [dora_direction(one) for one in members]
    reasons = {place: one for place, one in enumerate(found) if isinstance(one, str)}
    norms = [None if isinstance(one, str) else one for one in found]
    magnitudes = [float(torch.linalg.vector_norm(_wide(one.parts.vectors["magnitude"][0]))) for one in members]
    ratio = [None if one is None else _ratio(one.magnitude_norm, one.direction_norm) for one in norms]
    columns = [
        Column("magnitude_norm", magnitudes, labels),
        Column("direction_norm", [one and one.direction_norm for one in norms], labels, reasons),
        Column("magnitude_direction_ratio", ratio, labels, reasons),
    ]
    if merged_update:
        columns.append(Column("merged_update_norm", [one and one.merged_update_norm for one in norms], labels, reasons))
    return columns


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.nan


def _adalora_columns(
    moment: Moment, members: Sequence[Adapter], labels: Labels, arrays: dict[str, Tensor]
) -> list[Column]:
    found = adalora_allocations(moment.model, list(members))
    for one, allocation in zip(members, found, strict=True):
        if allocation.scores is not None:
            arrays[f"importance_scores/{one.name}/{one.scope}"] = allocation.scores
    sums = [None if one.scores is None else float(one.scores.double().sum()) for one in found]
    status = {place: NOT_ALLOCATED for place, value in enumerate(sums) if value is None}
    return [
        Column("importance_sum", sums, labels, status),
        Column("allocated_rank", [one.rank for one in found], labels),
    ]


STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "vector_norm": torch.linalg.vector_norm,
    "vector_mean": torch.mean,
    "vector_std": lambda v: v.std(correction=0),
    "vector_min": torch.amin,
    "vector_max": torch.amax,
}


def _vector_columns(members: Sequence[Adapter], labels: Labels) -> list[Column]:
    columns = []
    for which in dict.fromkeys(vector for one in members for vector in one.parts.vectors):
        held = [one.parts.vectors.get(which) for one in members]
        marked = {**labels, "vector": which}
        absent = {place: f"it has no {which}" for place, one in enumerate(held) if one is None}
        for name, statistic in STATISTICS.items():
            row = [None if one is None else float(statistic(_wide(one[0]))) for one in held]
            columns.append(Column(name, row, marked, absent))
        changes = [None if one is None or one[1] is None else _distance(one[0], one[1]) for one in held]
        unknown = {place: "what it began with is not known" for place, value in enumerate(changes) if value is None}
        columns.append(Column("vector_change", changes, marked, unknown | absent))
    return columns


def _wide(vector: Tensor) -> Tensor:
    return plain(vector).double().flatten()


def _distance(now: Tensor, then: Tensor) -> float:
    return float(torch.linalg.vector_norm(_wide(now) - _wide(then).to(now.device)))
