"""Spectra of the weight matrices themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.selection import check_max_layers
from learnscope.model.weights.matrices import WeightMatrix, weight_matrices
from learnscope.options import check_whole
from learnscope.quantities.weights import WeightSpectrum as Q
from learnscope.record import Measurement, Table
from learnscope.tensor.adapters.spectrum import DEFICIENT, TOLERANCE, TOP, ZERO, spectrum_numbers
from learnscope.tensor.weights.singular import FEWEST, Leading, all_values, is_small, leading_values, power_law

NOT_FINITE = "it has entries that are not finite"
WORDS = {ZERO: "the matrix is zero", DEFICIENT: "infinite: the matrix has a lower rank than its shape allows"}
"""For a weight, instead of the reasons of an update's spectrum."""
POWER_LAW = {f"power_law_{field}": field for field in ("alpha", "distance", "tail", "smallest")}
ALL_EQUAL = "a power law is fitted to eigenvalues σ² that are not all equal: these are"
Numbers = dict[str, float | str]
"""By name; a text is the reason for no number."""


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

    every: Schedule = 100
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
    """Singular values at most this share of the largest count as 0 for ranks, condition numbers and power laws."""

    reads_only = True
    cost = "the singular values of every matrix: see `full`"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max_layers(type(self).__name__, self.max_layers)
        check_whole(self, leading=1)
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"WeightSpectrum(tolerance={self.tolerance!r}): tolerance is a share from 0 to below 1")

    def open(self, moment: Moment) -> None:
        self._matrices(moment)

    def measure(self, moment: Moment) -> Measurement:
        matrices = self._matrices(moment)
        readable = [matrix for matrix in matrices if matrix.reason is None]
        small = [matrix for matrix in readable if self.full or is_small(matrix.values, self.leading)]
        full = dict(zip([m.scope for m in small], all_values([m.values for m in small]), strict=True))
        leading = {m.scope: leading_values(m.values, self.leading) for m in readable if m.scope not in full}
        reasons = {matrix.scope: matrix.reason or NOT_FINITE for matrix in matrices}
        rows = {
            "full": _full(full, self.tolerance),
            "leading": {scope: _leading_row(found) for scope, found in leading.items() if found is not None},
        }
        tables = []
        for spectrum, computed, unreadable in (("full", full, self.full), ("leading", leading, not self.full)):
            scopes = [m.scope for m in matrices if m.scope in computed or (m.reason is not None and unreadable)]
            if scopes:
                tables.append(_table(spectrum, scopes, rows[spectrum], reasons))
        values = full | {scope: None if spectrum is None else spectrum.values for scope, spectrum in leading.items()}
        arrays = {f"singular_values/{m.scope}": v for m in matrices if (v := values.get(m.scope)) is not None}
        return Measurement(tables, arrays)

    def _matrices(self, moment: Moment) -> list[WeightMatrix]:
        return weight_matrices(
            moment.model, self.parameters, trained_only=self.trained_only, max_layers=self.max_layers
        )


def _names(spectrum: str) -> list[str]:
    names = [*spectrum_numbers([torch.ones(1)]).values, *POWER_LAW]
    return names if spectrum == "full" else [*names, Q.leading_error.name]


def _table(spectrum: str, scopes: list[str], rows: Mapping[str, Numbers], reasons: Mapping[str, str]) -> Table:
    """Scopes without a row have the reason in every column."""
    columns = []
    for name in _names(spectrum):
        cells = [rows[scope][name] if scope in rows else reasons[scope] for scope in scopes]
        columns.append(Q.named(name).cells(cells, spectrum=spectrum))
    return Table("tensor", scopes, columns)


def _full(spectra: Mapping[str, Tensor | None], tolerance: float) -> dict[str, Numbers]:
    values = {scope: spectrum for scope, spectrum in spectra.items() if spectrum is not None}
    numbers = spectrum_numbers(list(values.values()), tolerance=tolerance)
    rows: dict[str, Numbers] = {}
    for place, (scope, spectrum) in enumerate(values.items()):
        row = rows[scope] = {}
        for name, column in numbers.values.items():
            reason = numbers.reasons.get(name, {}).get(place)
            row[name] = column[place] if reason is None else WORDS.get(reason, reason)
        row |= _power_law(spectrum[spectrum > tolerance * spectrum[0]], tolerance)
    return rows


def _power_law(spectrum: Tensor, tolerance: float) -> Numbers:
    """Fitted to the singular values that are not rounding error."""
    if len(spectrum) < FEWEST:
        above = f"with σ above {tolerance:g}·σ₁ there {'is' if len(spectrum) == 1 else 'are'} {len(spectrum)}"
        return dict.fromkeys(POWER_LAW, f"a power law is fitted to {FEWEST} eigenvalues σ² or more; {above}")
    law = power_law(spectrum.square())
    return {name: ALL_EQUAL if law is None else float(getattr(law, part)) for name, part in POWER_LAW.items()}


def _leading_row(spectrum: Leading) -> Numbers:
    """What follows from the largest values and the norm; the rest would need all values."""
    values, norm = spectrum.values, spectrum.norm
    reason = f"it needs all singular values: only the {len(values)} largest were computed"
    row: Numbers = dict.fromkeys(_names("leading"), reason)
    row |= {Q.largest_sv.name: float(values[0]), Q.frobenius_norm.name: norm, Q.leading_error.name: spectrum.error}
    if len(values) > 1:
        row[Q.leading_gap.name] = float(values[0] - values[1])
    if not norm:
        return row | dict.fromkeys([Q.stable_rank.name, *(Q.top_sv_ratio.at(k=k).name for k in TOP)], WORDS[ZERO])
    row[Q.stable_rank.name] = (norm / float(values[0])) ** 2
    energy = (values / norm).square().cumsum(0)
    return row | {Q.top_sv_ratio.at(k=k).name: min(float(energy[k - 1]), 1.0) for k in TOP if k <= len(values)}
