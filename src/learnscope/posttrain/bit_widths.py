"""Bit widths of a finished model: which layers need their bits, what configurations cost, the best one for a budget.

Where the obvious definition of a term would mislead, another is used:

- The best trade-off is the smallest model that cannot be told from the original, or the least damage within a budget,
  not accuracy divided by bits, which the fewest bits always win. Nothing measured is both as small and as good.
- Effective bits count every weight, scale and zero point, instead of averaging layers of different sizes.
  `effective_bits` is of the blocks, `effective_bits_model` of the model with its embeddings.
- Damage is the KL divergence from the model's own outputs on the same positions, not a difference of two accuracies,
  which a few examples cannot tell from 0.
- The frontier merges configurations that the examples cannot tell apart.
- Rounded values do not make a model faster, so no speed-up is reported for them. `exported` has the measured times of
  copies with packed integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.packed import save_packed
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.sensitivities import Sensitivities, load, save
from learnscope.model.bits.torchao_export import to_torchao
from learnscope.model.weights.content import model_content
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.exporting import recommended_weights
from learnscope.posttrain.session import AuditSession, by_scope, values_of
from learnscope.probes.bits.bit_frontier import BitFrontier
from learnscope.probes.bits.bit_optimum import BitOptimum
from learnscope.probes.bits.bit_sensitivity import BitSensitivity
from learnscope.probes.bits.bit_widths import BitWidths
from learnscope.probes.cost.exported_speed import ExportedSpeed
from learnscope.reading.audit_numbers import entries_of
from learnscope.record import Record

_KEYS = {"block_bits": "effective_bits", "model_bits": "effective_bits_model", "compression": "compression_ratio"}
"""Names of columns that are other than in the record."""
_CALLS = {
    "BitSensitivity": "analyze_layer_sensitivity(data_loader)",
    "BitWidths": "test_configurations(data_loader)",
    "BitFrontier": "find_frontier(data_loader)",
    "BitOptimum": "find_optimal_configuration(data_loader)",
}


class BitWidthAnalyzer:
    """Runs the model with some of its weights in fewer bits, and compares it with itself.

    Results are plain dictionaries: NaN is "not measured", and `reasons` beside it says why. Options of the calls are
    those of the probes: `bits`, `granularity`, `group_size`, `symmetric`, `examples`, `embeddings`, `activation_bits`.
    The model is as it was after every call.
    """

    def __init__(self, session: AuditSession) -> None:
        self.session = session

    def analyze_layer_sensitivity(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """What the outputs lose when one unit alone has fewer bits.

        `layers`: number of the layer → bits → the sum over its units, in nats a position (mean squared error for
        regression, as `judged_by` says). `units`: name → its layer, part, weights, and by bits all that was measured.
        """
        record = self.session.measure(BitSensitivity(**options), data_loader)
        units = {name: {**facts, "bits": {}, "reasons": {}} for name, facts in record.notes["units"].items()}
        for entry in entries_of([record]):
            unit = units[entry.scope]
            if "bits" in entry.labels:
                unit["bits"][int(entry.labels["bits"])] = values_of(entry)
                unit["reasons"] |= entry.reasons
            else:
                unit |= entry.values
        return {"layers": _by_layer(units, record.notes["judged_by"]), "units": units, **_about(record)}

    def test_configurations(
        self, data_loader: Any, configurations: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, dict[str, Any]]:
        """Every configuration, and the model as it is ("original"), by name.

        A configuration is a list with `{"attn_bits": 8, "mlp_bits": 4}` for each layer, or `{unit: bits}`; by default
        uniform, mixed, progressive and component-focused ones, see `learnscope.probes.bits.bit_widths.BitWidths`.
        """
        record = self.session.measure(BitWidths(configurations=configurations, **options), data_loader)
        return _configurations(record)

    def pareto_frontier(
        self, data_loader: Any, configurations: Mapping[str, Any] | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """The configurations that nothing smaller matches, from small to large; `merged` are the larger ones beside
        each that are not measurably better."""
        tested = self.test_configurations(data_loader, configurations, **options)
        return _frontier(self._record("BitWidths"), tested)

    def find_optimal_configuration(
        self, data_loader: Any, max_bytes: int | None = None, max_kl: float | None = None, **options: Any
    ) -> dict[str, Any]:
        """The least damage within `max_bytes` of the packed model, or the fewest bytes within `max_kl`.

        Without either: within the bytes of uniform 4 bits. `recommended` are the bits to use, of `recommended_name`:
        "optimal", or a uniform width that the mix does not measurably beat on held-out examples. `configurations` are
        the numbers of both and of a progressive mix on these.
        """
        record = self.session.measure(BitOptimum(max_bytes=max_bytes, max_kl=max_kl, **options), data_loader)
        names = (
            "verdict", "recommended_name", "recommended", "held_out", "held_out_reason", "solved", "sensitivities",
            "left_out",
        )  # fmt: skip
        return {
            **{name: record.notes[name] for name in names if name in record.notes},
            **by_scope(record, "model")["model"],
            "expected_kl": record.notes["expected"],
            "chosen_bits": {unit: numbers["chosen_bits"] for unit, numbers in by_scope(record, "unit").items()},
            "configurations": _configurations(record),
            **_about(record),
        }

    def find_frontier(
        self, data_loader: Any, max_bytes: int | None = None, max_kl: float | None = None, **options: Any
    ) -> dict[str, Any]:
        """Every way to store the model in fewer bits that could be worth it, and which to use.

        `choices` has the smallest that cannot be told from the original ("indistinguishable"), the smallest within
        `max_increase` ("within"), and the best in `max_bytes` ("at_size") or for `max_kl` ("at_damage"), each with what
        it loses. `recommended_name` is one of them, and no configuration that was measured is both as small and as
        good. Options are those of `learnscope.BitFrontier`.
        """
        record = self.session.measure(BitFrontier(max_bytes=max_bytes, max_kl=max_kl, **options), data_loader)
        names = (
            "verdict", "recommended_name", "recommended", "recommended_scheme", "choices", "allowed", "held_out",
            "held_out_reason", "left_out", "dropped", "far", "same", "no_intervals", "search_examples",
            "held_out_examples", "alone_examples", "embeddings",
        )  # fmt: skip
        return {
            **{name: record.notes[name] for name in names if name in record.notes},
            "chosen_bits": {unit: numbers["chosen_bits"] for unit, numbers in by_scope(record, "unit").items()},
            "configurations": _configurations(record),
            **_about(record),
        }

    def check(self, max_bytes: int | None = None, max_kl: float | None = None, **options: Any) -> None:
        """Refuse wrong options and budgets that nothing can keep, before anything is measured."""
        BitFrontier(max_bytes=max_bytes, max_kl=max_kl, **options).check_fits(self.session.model)

    def analyze(
        self, data_loader: Any, max_bytes: int | None = None, max_kl: float | None = None, *, timed_on: Any = None,
        packed_seconds: float = ExportedSpeed.seconds, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """All of it: `sensitivity`, `configurations`, `pareto_frontier`, `optimal`, `exported`.

        Options are those of `find_frontier`, which `optimal` and `configurations` are from. `timed_on` are the data
        whose first batch the exported copies are timed on, where they are not the same, each for `packed_seconds`.
        """
        self.check(max_bytes, max_kl, **options)
        probe = BitFrontier(**options)
        ways = probe.ways(self.session.model)
        measured, model = probe.alone_widths(self.session.model), self.session.model
        alone = {
            "bits": measured, "read_off": [width for width in probe.widths(model) if width not in measured],
            "examples": min(probe.examples, probe.alone_examples),
        }  # fmt: skip
        with self.session.sharing(data_loader):
            sensitivity = self.analyze_layer_sensitivity(data_loader, **ways | alone)
            optimal = self.find_frontier(data_loader, max_bytes, max_kl, **options)
        timed = data_loader if timed_on is None else timed_on
        exported = self.measure_exported_speed(timed, seconds=packed_seconds)
        return {
            "sensitivity": sensitivity,
            "configurations": optimal["configurations"],
            "pareto_frontier": _frontier(self._record("BitFrontier"), optimal["configurations"]),
            "optimal": optimal,
            "exported": exported,
        }

    def measure_exported_speed(self, data_loader: Any, **options: Any) -> dict[str, dict[str, Any]]:
        """Real seconds and bytes of copies whose blocks torchao holds in 8 and 4 bits, beside the model's own.

        Options are those of `learnscope.ExportedSpeed`. A copy that cannot be made has NaN, and `reasons`.
        """
        record = self.session.measure(ExportedSpeed(**options), data_loader)
        return {scope: {"real": True, **numbers} for scope, numbers in by_scope(record, "exported").items()}

    def export_torchao(self, bits: int | Mapping[str, int] = 8) -> nn.Module:
        """A copy of the model that holds these units (a number: all blocks) in 8 or 4 bits through torchao."""
        model = self.session.model
        chosen = uniform(find_units(model), bits) if isinstance(bits, int) else dict(bits)
        return to_torchao(model, chosen)

    def save_sensitivity(self, path: str | Path) -> Path:
        """Write what `analyze_layer_sensitivity` measured last, with what it read off between the widths.

        The same numbers give the same bytes.
        """
        record = self._record("BitSensitivity")
        judged = record.notes["judged_by"]
        damage: dict[str, dict[int, float]] = {name: {} for name in record.notes["units"]}
        size: dict[str, dict[int, int]] = {name: {} for name in damage}
        weights, stored = {}, {}
        for entry in entries_of([record]):
            values = values_of(entry)
            if "bits" in entry.labels:
                bits = int(entry.labels["bits"])
                damage[entry.scope][bits], size[entry.scope][bits] = values[judged], values["bytes"]
            else:
                weights[entry.scope], stored[entry.scope] = values["weights"], values["original_bytes"]
        for bits_text, of_units in record.notes.get("between", {}).items():
            for name, numbers in of_units.items():
                damage[name][int(bits_text)], size[name][int(bits_text)] = numbers["damage"], numbers["bytes"]
        measured = Sensitivities(
            damage=damage, size=size, stored=stored, weights=weights, other_bytes=record.notes["other_bytes"],
            judged_by=judged, scheme=record.notes["scheme"], model=model_content(self.session.model),
            examples=record.notes["examples"],
        )  # fmt: skip
        save(measured, path)
        return Path(path)

    def optimize_from(
        self, path: str | Path, max_bytes: int | None = None, max_kl: float | None = None
    ) -> dict[str, Any]:
        """The best mix for another budget from a saved file, without running the model; refused for other weights."""
        measured = load(path, model=model_content(self.session.model))
        solved = measured.solve(max_bytes=max_bytes, max_kl=max_kl)
        return {
            "bits": solved.choice,
            "expected_kl": solved.damage,
            "packed_bytes": solved.bytes,
            "solved": solved.status,
        }

    def export(self, path: str | Path, bits: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Write the model packed: in the bits that were recommended last, or in those given by unit."""
        if Path(path).suffix != ".safetensors":
            raise PosttrainError(f"{path}: name a file that ends in .safetensors, by which it is known when it is read")
        scheme, ready = None, None
        if bits is None:
            bits, scheme, ready = recommended_weights(self.session)
        info = save_packed(self.session.model, bits, scheme, path, ready=ready)
        return {"path": str(info.path), "tensor_bytes": info.tensor_bytes, "file_bytes": info.file_bytes}

    def _record(self, probe: str) -> Record:
        record = self.session.record(probe)
        if record is None:
            raise PosttrainError(f"this has not been measured yet: call {_CALLS[probe]} first")
        return record


def _by_layer(units: Mapping[str, Mapping[str, Any]], judged: str) -> dict[int | str, dict[int, float]]:
    """Sums over the units of each layer; a unit outside of all layers is a layer of its own."""
    layers: dict[int | str, dict[int, list[float]]] = {}
    for name, unit in units.items():
        layer = layers.setdefault(name if unit["index"] is None else unit["index"], {})
        for bits, numbers in unit["bits"].items():
            layer.setdefault(bits, []).append(numbers[judged])
    return {name: {bits: math.fsum(each) for bits, each in layer.items()} for name, layer in layers.items()}


def _configurations(record: Record) -> dict[str, dict[str, Any]]:
    return {
        entry.name: {
            "reasons": {_KEYS.get(name, name): reason for name, reason in entry.reasons.items()},
            **{_KEYS.get(name, name): value for name, value in values_of(entry).items()},
            "bits": dict(record.notes["bits"][entry.name]),
        }
        for entry in entries_of([record])
        if entry.kind == "configuration"
    }


def _frontier(record: Record, tested: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    shown = ("packed_bytes", "effective_bits", record.notes["judged_by"])
    on_frontier = [name for name, numbers in tested.items() if numbers["on_frontier"] == 1]
    return [
        {
            "name": name,
            **{key: tested[name][key] for key in shown},
            "merged": list(record.notes.get("merged", {}).get(name, [])),
        }
        for name in sorted(on_frontier, key=lambda name: tested[name]["packed_bytes"])
    ]


def _about(record: Record) -> dict[str, Any]:
    names = (
        "examples", "examples_given", "positions", "data", "reduced", "scheme", "judged_by", "rerun", "rerun_reason",
    )  # fmt: skip
    return {name: record.notes[name] for name in names if name in record.notes}
