"""What the search over bit widths tries: bits for every unit, and the way in which weights are rounded to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from learnscope.core.moment import Moment
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantised_units import Unit
from learnscope.probes.bits.quantising import BitProbe
from learnscope.tensor.bits.quantize import HALF_BITS, WHOLE_BITS, Half, Scheme

GROUPS = (128, 64, 32)
"""Input features that share a scale."""
OUTSIDE = ("embedding", "head")
Family = Literal[
    "original", "half", "uniform", "group", "tensor", "zero point", "blocks", "mixed", "activations", "method"
]


class Quantiser(BitProbe):
    """One way of rounding weights, and the model run with it; the search makes one for each way that it tries."""

    half: Half = "float16"
    searched: int | None = None
    """Examples to search on; None: every other one."""

    def searched_on(self) -> int | None:
        return self.searched

    def scheme(self) -> Scheme:
        return replace(super().scheme(), half=self.half)

    def described(self) -> dict[str, Any]:
        return super().described() | ({"half": self.half} if self.half != "float16" else {})


@dataclass(frozen=True)
class Candidate:
    """A configuration that is tried."""

    name: str
    family: Family
    bits: Mapping[str, int]
    way: Quantiser

    def key(self) -> Any:
        """The same for candidates that are the same model: whole numbers have a way, 16 bits have another."""
        ways = dict(self.way.described())
        widths = set(self.bits.values())
        if not widths & set(WHOLE_BITS):
            ways = {name: ways[name] for name in ("half", "activation_bits") if name in ways}
        elif HALF_BITS not in widths:
            ways.pop("half", None)
        symmetric = tuple(self.way.scheme().is_symmetric(width) for width in sorted(widths))
        ways.pop("symmetric", None)
        return tuple(sorted(self.bits.items())), symmetric, tuple(sorted(ways.items()))

    def packed_bytes(self, moment: Moment) -> int:
        return self.way.ledger(moment, self.bits).packed_bytes


def suffix(way: Quantiser) -> str:
    """How the name of a configuration says that its weights are rounded otherwise than by channel, to the nearest.

    >>> suffix(Quantiser()), suffix(Quantiser(granularity="group", group_size=32, symmetric=False, method="gptq"))
    ('', '_group_32_asymmetric_gptq')
    """
    parts = {"channel": "", "tensor": "_tensor", "group": f"_group_{way.group_size}"}[way.granularity]
    parts += {None: "", True: "_symmetric", False: "_asymmetric"}[way.symmetric]
    return parts if way.method == "rtn" else f"{parts}_{way.method}"


def outside_blocks(units: Sequence[Unit]) -> list[str]:
    """Embeddings, heads and all else that is not in a block, where there are blocks."""
    blocks = any(unit.index is not None for unit in units)
    return [unit.name for unit in units if blocks and unit.index is None]


def evenly(units: Sequence[Unit], width: int, way: Quantiser, family: Family = "uniform") -> Candidate:
    """All units at one width."""
    return Candidate(f"uniform_{width}{suffix(way)}", family, uniform(units, width), way)


def halves(units: Sequence[Unit], way: dict[str, Any]) -> list[Candidate]:
    """The weights in 16-bit floating point; what is computed with them has the model's own dtype."""
    sixteen = uniform(units, HALF_BITS)
    kinds: tuple[Half, ...] = ("float16", "bfloat16")
    return [Candidate(kind, "half", sixteen, Quantiser(**way, half=kind)) for kind in kinds]


def least_ways(units: Sequence[Unit], way: Mapping[str, Any]) -> list[Quantiser]:
    """Other ways than by channel that may take fewer bytes: one scale for a tensor, or scales of 16 bits for groups."""
    return [Quantiser(**{**way, "granularity": "tensor"}), *distinct_groups(units, way)]


def distinct_groups(units: Sequence[Unit], way: Mapping[str, Any]) -> list[Quantiser]:
    """Ways with a scale for each group, with scales of 16 bits; none whose groups are whole channels."""
    inputs = max(tensor.matrix_shape[1] for unit in units for tensor in unit.tensors)
    return [
        Quantiser(**{**way, "granularity": "group", "group_size": group_size, "scales": "float16"})
        for group_size in GROUPS
        if group_size < inputs
    ]
