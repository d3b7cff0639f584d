"""Ways to assign bits to the units of a model: uniform, more at the ends, more for one kind of part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from learnscope.model.bits.quantised_units import Unit

Mix = dict[str, int]
"""Unit → bits."""


class NoMix(ValueError):
    """A mix that makes no sense for these units; the message says why."""


def uniform(units: Sequence[Unit], bits: int) -> Mix:
    """The same bits for all."""
    return {unit.name: bits for unit in units}


def progressive(units: Sequence[Unit], high: int, low: int) -> Mix:
    """More bits for the first and the last quarter of the layers, at least one each, and outside of the blocks."""
    layers = _layers(units)
    count = max(layers.values(), default=-1) + 1
    if count < 3:
        raise NoMix(f"{count} layers have no middle: bits that are higher at the boundaries need three")
    edge = max(1, count // 4)
    middle = range(edge, count - edge)
    return {unit.name: low if layers.get(unit.name, -1) in middle else high for unit in units}


def focused(units: Sequence[Unit], part: str, high: int, low: int) -> Mix:
    """More bits for the attention ("attn") or the MLP ("mlp") of every block, fewer for all else."""
    if not any(unit.part == part for unit in units):
        raise NoMix(f"no unit is the {'attention' if part == 'attn' else 'MLP'} of a block")
    if all(unit.part == part for unit in units):
        raise NoMix("all units are of this part: it would be uniform")
    return {unit.name: high if unit.part == part else low for unit in units}


def alternating(units: Sequence[Unit], high: int, low: int) -> Mix:
    """More bits for every other layer, starting with the first: a mix that uses no measurement."""
    layers = _layers(units)
    if len(set(layers.values())) < 2:
        raise NoMix("alternating bits need two layers")
    return {unit.name: low if layers.get(unit.name, 0) % 2 else high for unit in units}


def by_sensitivity(units: Sequence[Unit], damage: Mapping[str, Mapping[int, float]], high: int, low: int) -> Mix:
    """More bits for the half of the units that lose most with fewer bits, as measured one by one."""
    if len(units) < 2:
        raise NoMix("a mix needs two units")
    loss = {unit.name: damage[unit.name][low] - damage[unit.name][high] for unit in units}
    # a stable order: of equal units, the earlier comes first
    worst = sorted(loss, key=lambda name: -loss[name])[: len(units) // 2]
    return {unit.name: high if unit.name in worst else low for unit in units}


@dataclass(frozen=True, slots=True)
class Mixes:
    """Mixes by name, the family of each, the rule behind the mixed ones, and the reasons for those left out."""

    bits: dict[str, Mix] = field(default_factory=dict)
    family: dict[str, str] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def default_mixes(
    units: Sequence[Unit], bits: Sequence[int], damage: Mapping[str, Mapping[int, float]] | None
) -> Mixes:
    """A uniform mix for every width; all others for each pair of neighbours, by `damage` if measured for both."""
    widths = sorted(set(bits), reverse=True)
    mixes = Mixes()
    for width in widths:
        mixes.bits[f"uniform_{width}"], mixes.family[f"uniform_{width}"] = uniform(units, width), "uniform"
    for high, low in pairwise(widths):
        mixed = partial(alternating, units)
        rule = f"nothing was measured: {high} bits for every other layer"
        if damage is not None and all({high, low} <= damage.get(unit.name, {}).keys() for unit in units):
            mixed = partial(by_sensitivity, units, damage)
            rule = f"measured: {high} bits for the half of the units that loses most at {low}"
        for start, family, make in (
            ("mixed", "mixed", mixed),
            ("progressive", "progressive", partial(progressive, units)),
            ("attention_focused", "attention", partial(focused, units, "attn")),
            ("mlp_focused", "mlp", partial(focused, units, "mlp")),
        ):
            name = f"{start}_{high}_{low}"
            try:
                mixes.bits[name], mixes.family[name] = make(high, low), family
            except NoMix as error:
                mixes.left_out[name] = str(error)
        if f"mixed_{high}_{low}" in mixes.bits:
            mixes.rules[f"mixed_{high}_{low}"] = rule
    return mixes


def _layers(units: Sequence[Unit]) -> dict[str, int]:
    """The layer number of each unit; without blocks, every unit is a layer."""
    if any(unit.index is not None for unit in units):
        return {unit.name: unit.index for unit in units if unit.index is not None}
    return {unit.name: place for place, unit in enumerate(units)}
