"""What adapters add to their weights: spectra, and how far their directions have turned."""

from __future__ import annotations

from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.adapters.inventory import AdapterPlaces, grouped
from learnscope.model.selection import check_max_layers, spread
from learnscope.names import resolve
from learnscope.probes.adapters.columns import (
    Spectra,
    adalora_columns,
    dora_columns,
    intruder_columns,
    plain_columns,
    relative_column,
    vector_columns,
)
from learnscope.probes.adapters.drift import Drift
from learnscope.probes.adapters.opening import open_adapters, warn_of_unknown
from learnscope.record import Measurement, Table
from learnscope.tensor.adapters.spectrum import TOLERANCE


class AdapterSpectrum(Probe):
    """The update ΔW of every adapter, from its small factors: ΔW itself is never built.

    Adapters are PEFT's, or modules of your own with `lora_A` and `lora_B` (parameters, layers, or dictionaries of them;
    their scaling is `scaling`, or `alpha` over the rank).

    ΔW is scaling·B A (LoRA, rsLoRA, LoRA+, LoRA-FA, DoRA before its magnitude), less the B₀A₀ that PiSSA and MiLoRA
    begin with, P diag(E) Q (AdaLoRA), or diag(λ_b) B diag(λ_d) A (VeRA). B₀A₀ is kept when a session opens before the
    first step, and saved with it (`learnscope.remember_start` keeps it earlier). IA³ and LayerNorm tuning add no
    matrix: their spectrum is null and says so, and their vectors are described instead.
    Adapters that are inactive, disabled or merged are measured as well.

    Arrays: `singular_values/<adapter>/<module>`, `importance_scores/<adapter>/<module>` for AdaLoRA, and with
    `merged_update` `merged_singular_values/<adapter>/<module>`. Notes: `families`, and where there are some `unknown`
    (adapters of a family that is not known here, not measured), `tied`, `importance` (how AdaLoRA's scores were
    computed: the rank allocator's; where it has none |w·∂L/∂w|, or |E| without gradients).

    The spans of the first and the last measurement are kept, and saved with the session: 2·(m + n)·r float64 numbers
    a module. Modules that do not fit into `memory_mb` together with those before them have no drift.
    """

    every: Schedule = 100
    tolerance: float = TOLERANCE
    """Singular values at most this share of the largest count as 0 for ranks and condition numbers."""
    drift: bool = True
    merged_update: bool = False
    """Also the spectrum of what merging a DoRA adapter adds to its weight, a matrix of full rank that is built and
    decomposed in float64."""
    intruders: bool = False
    """Also the directions that the original weight did not have. Decomposes every weight twice in full: for a last
    measurement (`at="end"`) or an audit."""
    memory_mb: float = 256.0
    max_layers: int | None = None
    """Only adapters in at most so many layers: the first, the last and some evenly between, or the middle one."""

    reads_only = True
    cost = "a QR and a small SVD of every adapter's factors; with `intruders` two full SVDs of every weight"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max_layers(type(self).__name__, self.max_layers)
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"AdapterSpectrum(tolerance={self.tolerance!r}): tolerance is a share from 0 to below 1")
        if not self.memory_mb >= 0:
            raise ValueError(f"AdapterSpectrum(memory_mb={self.memory_mb!r}): memory_mb is a number from 0")

    def open(self, moment: Moment) -> None:
        open_adapters(moment)

    def measure(self, moment: Moment) -> Measurement:
        places: AdapterPlaces | None = moment.state.get("_places")
        if places is None or not places.hold(moment.model):
            places = moment.state["_places"] = AdapterPlaces(moment.model)
        adapters = places.read(moment.optimizers)
        warn_of_unknown(type(self).__name__, adapters.unknown, moment.state)
        layers = [resolve(f"{adapter.scope}.weight").layer for adapter in adapters.items]
        chosen = set(spread(layers, self.max_layers))
        adapters.items = [adapter for adapter, layer in zip(adapters.items, layers, strict=True) if layer in chosen]
        spectra = Spectra(adapters.items, vectors=self.drift, tolerance=self.tolerance)
        drift = Drift(moment.state, self.memory_mb)
        arrays = spectra.arrays()
        tables = []
        families: dict[str, dict[str, int]] = {}
        ways: dict[str, str] = {}
        for (name, family), members in grouped(adapters.items).items():
            families.setdefault(name, {})[family] = len(members)
            labels = {"adapter": name, "family": family}
            columns = [*spectra.columns(members, labels), *plain_columns(members, labels)]
            columns.append(relative_column(members, spectra, labels, moment.state))
            if self.drift and any(adapter.parts.factors is not None for adapter in members):
                columns += drift.columns(members, spectra, labels)
            if self.intruders:
                columns += intruder_columns(members, labels)
            if family == "dora":
                columns += dora_columns(members, labels, self.merged_update, arrays)
            if family == "adalora":
                columns += adalora_columns(moment, members, labels, arrays, ways)
            columns += vector_columns(members, labels)
            tables.append(Table("module", [adapter.scope for adapter in members], columns))
        notes: dict[str, Any] = {"families": families, **drift.measured_at(moment.step)}
        notes |= {"unknown": adapters.unknown} if adapters.unknown else {}
        notes |= {"importance": ways} if ways else {}
        tied = {adapter.scope: adapter.tied_to for adapter in adapters.items if adapter.tied_to}
        return Measurement(tables, arrays, notes | ({"tied": tied} if tied else {}))
