"""What the probes over adapters have in common: which adapters they take, and what they say of those they do not."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from learnscope.core.probe import ProbeWarning
from learnscope.model.adapters.inventory import Adapter
from learnscope.model.selection import spread
from learnscope.names import resolve


def of_few_layers(adapters: Sequence[Adapter], most: int | None) -> list[Adapter]:
    """Those of at most so many layers, as `spread` chooses them."""
    if most is None:
        return list(adapters)
    layers = [resolve(f"{one.scope}.weight").layer for one in adapters]
    chosen = set(spread(layers, most))
    return [one for one, layer in zip(adapters, layers, strict=True) if layer in chosen]


def warn_of_unknown(probe: str, families: Iterable[str], state: dict[str, Any]) -> None:
    """Say once of each family that it is not measured."""
    told = state.setdefault("unknown", [])
    fresh = [family for family in families if family not in told]
    if fresh:
        told += fresh
        known = "LoRA and its kin, AdaLoRA, VeRA, IA³ and LayerNorm tuning"
        warnings.warn(
            f"{probe} does not know {', '.join(fresh)}: these adapters are not measured. It knows {known}.",
            ProbeWarning,
            stacklevel=4,
        )
