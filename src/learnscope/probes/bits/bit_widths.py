"""What a model loses and saves with its units in given bits: uniform, mixed, progressive, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.bits.mixes import Mixes, default_mixes
from learnscope.model.bits.quantise import checked_widths, from_layers
from learnscope.model.bits.quantised_units import Unit, find_units
from learnscope.probes.bits.columns import Configuration, configuration_table, frontier
from learnscope.probes.bits.damage import additivity, judged_by
from learnscope.probes.bits.quantising import BitProbe
from learnscope.probes.outputs.columns import with_cosine_reasons
from learnscope.quantities.bits import BitWidths as Q
from learnscope.record import Measurement

Layers = Sequence[Mapping[str, int]]
ORIGINAL = "original"


class BitWidths(BitProbe):
    """Configurations of bits, each run on the same examples as the model itself.

    Without `configurations`: uniform_b for each of `bits`, and for each two neighbours among them mixed_H_L (H bits for
    the half of the units that loses most where `BitSensitivity` has measured it, else for every other layer),
    progressive_H_L (H bits for the first and the last quarter of the layers),
    attention_focused_H_L and mlp_focused_H_L. Times are not measured: a model with quantised values takes as long as
    before.

    `configurations` are lists with `{"attn_bits": 8, "mlp_bits": 4}` for each layer, or `{unit: bits}`; a unit that is
    not named stays as stored. For regression, `mse` stands for the KL on the frontier and in the additivity.

    Notes: `family`, `bits` by configuration, `merged` (larger configurations that are not measurably better than one
    on the frontier), `rules` (how mixed ones came about), `left_out` (those that mean nothing for this model, and why),
    `no_intervals` (why differences on the frontier were judged by means alone), `examples`, `positions`, `scheme`,
    `judged_by`.
    """

    configurations: Mapping[str, Layers | Mapping[str, int]] | None = None

    cost = "a forward pass over the examples for each configuration"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.configurations is None:
            return
        if not isinstance(self.configurations, Mapping) or not self.configurations:
            raise ValueError("BitWidths(configurations=...): a dictionary of one or more configurations by their names")
        if ORIGINAL in self.configurations:
            raise ValueError(
                f"BitWidths: {ORIGINAL!r} is the model as it is stored; give the configuration another name"
            )

    def units(self, moment: Moment) -> list[Unit]:
        """With embeddings and head also where a configuration names one of them."""
        units = super().units(moment)
        named = {name for bits in (self.configurations or {}).values() if isinstance(bits, Mapping) for name in bits}
        if self.embeddings or named <= {unit.name for unit in units}:
            return units
        every = moment.once(("units", True), lambda: find_units(moment.model, embeddings=True))
        return every if named <= {unit.name for unit in every} else units

    def open(self, moment: Moment) -> None:
        if self.configurations is not None:
            self._mixes(self.units(moment), None)

    def measure(self, moment: Moment) -> Measurement:
        single: Mapping[str, Mapping[int, float]] | None = moment.cache.get(self.measured_key())
        mixes = self._mixes(self.units(moment), single)
        original = self.variant(moment, {})
        tried = []
        for name, bits in moment.track([(ORIGINAL, {}), *mixes.bits.items()], "configurations of bits"):
            scores = self.variant(moment, bits) if bits else original
            added = _additivity(bits, scores, single)
            tried.append(Configuration(name, bits, scores, self.ledger(moment, bits), added))
        front, judged = frontier(tried)
        notes: dict[str, Any] = {
            "family": {ORIGINAL: ORIGINAL, **mixes.family},
            "bits": {item.name: dict(item.bits) for item in tried},
            "merged": {point.name: list(point.merged) for point in front if point.merged},
            "rules": mixes.rules,
            "left_out": mixes.left_out,
            **judged,
            **self.notes(original),
        }
        table = configuration_table(Q, tried, original, front, sampled=moment.subject.sampled)
        return Measurement([table], notes=notes, finish=with_cosine_reasons)

    def _mixes(self, units: Sequence[Unit], single: Mapping[str, Mapping[int, float]] | None) -> Mixes:
        if self.configurations is None:
            return default_mixes(units, self.bits, single)
        mixes = Mixes()
        for name, given in self.configurations.items():
            try:
                bits = checked_widths(given, units) if isinstance(given, Mapping) else from_layers(units, given)
            except ValueError as error:
                raise ValueError(f"configuration {name!r}: {error}") from error
            mixes.bits[str(name)], mixes.family[str(name)] = bits, "custom"
        return mixes


def _additivity(
    bits: Mapping[str, int], scores: Mapping[str, Any], single: Mapping[str, Mapping[int, float]] | None
) -> float | str:
    if single is None:
        return "single units were not measured: run BitSensitivity at the same moment, on the same examples"
    missing = next((f"{u} at {b} bits" for u, b in bits.items() if b not in single.get(u, {})), None)
    if missing is not None:
        return f"{missing} was not measured alone"
    return additivity([single[u][b] for u, b in bits.items()], scores[judged_by(scores)])
