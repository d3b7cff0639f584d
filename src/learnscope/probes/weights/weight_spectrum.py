"""Spectra of the weight matrices themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.model.selection import check_max_layers
from learnscope.model.weights.matrices import WeightMatrix, weight_matrices
from learnscope.options import check_whole
from learnscope.quantities import Quantities
from learnscope.quantities.weights import WeightSpectrum as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.adapters.spectrum import DEFICIENT, TOLERANCE, TOP, ZERO, spectrum_numbers
from learnscope.tensor.weights.powerlaw import FEWEST, power_law
from learnscope.tensor.weights.singular import Leading, all_values, is_small, leading_values

NOT_FINITE = "it has entries that are not finite"
WORDS = {ZERO: "the matrix is zero", DEFICIENT: "infinite: the matrix has a lower rank than its shape allows"}
"""What the reasons of an update's spectrum are called for a weight."""
POWER_LAW = {
    Q.power_law_alpha.name: "alpha",
    Q.power_law_distance.name: "distance",
    Q.power_law_tail.name: "tail",
    Q.power_law_smallest.name: "smallest",
}
"""Of which field of a power law each is."""
NO_POWER_LAW = f"a power law is fitted to {FEWEST} eigenvalues σ² above 0, not all equal: there are not so many"
Numbers = dict[str, float | str]
"""By name; a text is the reason for none."""


class WeightSpectrum(Probe):
    """The singular values σ₁ ≥ σ₂ ≥ … of weight matrices, in float64.

    Matrices are parameters of two dimensions and kernels of convolutions, [out, in, k, …] read as [out, in·k·…] (those
    of transposed convolutions by their first dimension as well). A weight that modules share has one row. The factors
    of adapters have none: see `AdapterSpectrum`.

    Scope: the parameter's name without wrappers. Label `spectrum`: `full`, or `leading` where only the largest were
    computed; then what needs all of them is null and says so. Arrays: `singular_values/<parameter>`.

    Null, with the reason, are matrices with entries that are not finite and packed or quantised ones. A session whose
    model has no matrix to look at is refused.
    """

    every: int = 100
    full: bool = True
    """All singular values: about 0.3 s for 1024 × 1024 on one CPU core, 2.5 s for 2048 × 2048. False: the `leading`
    largest, in 0.1 to 0.4 s and 0.2 to 1.2 s. Matrices with up to 512 rows or columns are always decomposed in full."""
    leading: int = 16
    max_layers: int | None = None
    """Only matrices of at most so many layers, the first, the last and some evenly between; one is the middle one. An
    embedding or a head is a layer of its own."""
    parameters: str | Sequence[str] | None = None
    """Names of layers, modules or parameters; None for all."""
    trained_only: bool = True
    tolerance: float = TOLERANCE
    """Singular values at most this share of the largest count as 0 for ranks and condition numbers."""

    reads_only: ClassVar[bool] = True
    quantities: ClassVar[type[Quantities]] = Q
    cost: ClassVar[str] = "the singular values of every matrix: see `full`"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max_layers(type(self).__name__, self.max_layers)
        check_whole(self, leading=1)
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"WeightSpectrum(tolerance={self.tolerance!r}): tolerance is a share from 0 to below 1")

    def open(self, moment: Moment) -> None:
        self._matrices(moment)

    def measure(self, moment: Moment) -> Measurement:
        found = self._spectra(self._matrices(moment))
        tables = []
        for spectrum in ("full", "leading"):
            members = [one for one in found if one.spectrum == spectrum]
            if members:
                tables.append(_table(members, spectrum, self.tolerance))
        arrays = {f"singular_values/{one.scope}": one.values for one in found if one.values is not None}
        return Measurement(tables, arrays)

    def _matrices(self, moment: Moment) -> list[WeightMatrix]:
        return weight_matrices(
            moment.model, self.parameters, trained_only=self.trained_only, max_layers=self.max_layers
        )

    def _spectra(self, matrices: Sequence[WeightMatrix]) -> list[_Spectrum]:
        readable = [place for place, one in enumerate(matrices) if one.reason is None]
        whole = [place for place in readable if self.full or is_small(matrices[place].values, self.leading)]
        values = dict(zip(whole, all_values([matrices[place].values for place in whole]), strict=True))
        found = []
        for place, one in enumerate(matrices):
            if place in values:
                found.append(_Spectrum(one.scope, "full", values[place], NOT_FINITE))
            elif one.reason is None:
                leading = leading_values(one.values, self.leading)
                held = None if leading is None else leading.values
                found.append(_Spectrum(one.scope, "leading", held, NOT_FINITE, leading))
            else:
                found.append(_Spectrum(one.scope, "full" if self.full else "leading", None, one.reason))
        return found


@dataclass(frozen=True, slots=True)
class _Spectrum:
    """Of one matrix: all its singular values, the leading ones, or the reason for none."""

    scope: str
    spectrum: str
    values: Tensor | None
    reason: str
    leading: Leading | None = None


def _table(members: Sequence[_Spectrum], spectrum: str, tolerance: float) -> Table:
    rows = _full(members, tolerance) if spectrum == "full" else [_leading(one, tolerance) for one in members]
    columns = []
    for name in rows[0]:
        cells = [row[name] for row in rows]
        status = {place: cell for place, cell in enumerate(cells) if isinstance(cell, str)}
        values = [None if isinstance(cell, str) else cell for cell in cells]
        columns.append(Q.named(name).column(values, {"spectrum": spectrum}, status))
    return Table("tensor", [one.scope for one in members], columns)


def _full(members: Sequence[_Spectrum], tolerance: float) -> list[Numbers]:
    stand_in = torch.ones(1, dtype=torch.float64)
    found = spectrum_numbers([stand_in if one.values is None else one.values for one in members], tolerance=tolerance)
    rows: list[Numbers] = []
    for place, one in enumerate(members):
        row: Numbers = {}
        for name, values in found.values.items():
            reason = found.reasons.get(name, {}).get(place)
            row[name] = values[place] if reason is None else WORDS.get(reason, reason)
        row |= _power_law(one.values)
        rows.append(row if one.values is not None else dict.fromkeys(row, one.reason))
    return rows


def _power_law(values: Tensor | None) -> Numbers:
    law = None if values is None else power_law(values.square())
    return {name: NO_POWER_LAW if law is None else float(getattr(law, part)) for name, part in POWER_LAW.items()}


def _leading(one: _Spectrum, tolerance: float) -> Numbers:
    """What the largest values and the norm tell; the rest would need all values."""
    names = [*spectrum_numbers([torch.ones(1)], tolerance=tolerance).values, *POWER_LAW]
    if one.leading is None:
        return dict.fromkeys([*names, Q.leading_error.name], one.reason)
    values, norm = one.leading.values, one.leading.norm
    row: Numbers = dict.fromkeys(names, f"it needs all singular values: only the {len(values)} largest were computed")
    row |= {Q.largest_sv.name: float(values[0]), Q.frobenius_norm.name: norm, Q.leading_error.name: one.leading.error}
    if len(values) > 1:
        row[Q.leading_gap.name] = float(values[0] - values[1])
    if not norm:
        return row | dict.fromkeys([Q.stable_rank.name, *(Q.top_sv_ratio.at(k=k).name for k in TOP)], WORDS[ZERO])
    row[Q.stable_rank.name] = (norm / float(values[0])) ** 2
    held = (values / norm).square().cumsum(0)
    return row | {Q.top_sv_ratio.at(k=k).name: min(float(held[k - 1]), 1.0) for k in TOP if k <= len(values)}
