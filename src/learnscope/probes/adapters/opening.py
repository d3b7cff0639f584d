"""What the probes of adapters do when they open: keep the initial factors, and warn of unknown families.

B₀A₀ of PiSSA, MiLoRA and similar methods is stored nowhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import ProbeWarning
from learnscope.model.adapters.families import NO_START
from learnscope.model.adapters.inventory import find_adapters
from learnscope.model.adapters.start import Start, lora_layers, register_start, start_of, store_start

LEFT, RIGHT, METHOD = "start_left", "start_right", "start_method"


def open_adapters(moment: Moment) -> None:
    """Refuse a model without adapters; store the initial factors, or restore them from the state.

    What this process knows comes first: it made the base that the factors are taken from. A session that opens before
    the first step takes the factors as they are if they hold a part of the weight, unless they were loaded for
    inference: those are trained already.
    """
    adapters = find_adapters(moment.model, moment.optimizers)
    begins = moment.step == 0 and moment.source not in ("replay", "audit")
    # LoRA's own layers only, by identity: several adapters of one module are several entries of it
    lora = {id(layer) for _, layer in lora_layers(moment.model)}
    state = moment.state
    for adapter in adapters.items:
        if id(adapter.layer) not in lora:
            continue
        left, right, method = (f"{part}/{adapter.name}/{adapter.scope}" for part in (LEFT, RIGHT, METHOD))
        if start_of(adapter.layer, adapter.name) is None:
            if left in state:
                register_start(adapter.layer, adapter.name, Start(state[left], state[right], state.get(method)))
            elif begins and adapter.parts.reason == NO_START and not adapter.for_inference:
                store_start(adapter.layer, adapter.name, None)
        start = start_of(adapter.layer, adapter.name)
        if start is not None:
            state |= {left: start.left, right: start.right}
            state |= {} if start.method is None else {method: start.method}


def warn_of_unknown(probe: str, families: Iterable[str], state: dict[str, Any]) -> None:
    """Warn once of each family that is not measured."""
    warned = state.setdefault("unknown", [])
    fresh = [family for family in families if family not in warned]
    if fresh:
        warned += fresh
        known = "LoRA and its kin, AdaLoRA, VeRA, IA³ and LayerNorm tuning"
        warnings.warn(
            f"{probe} does not know {', '.join(fresh)}: these adapters are not measured. It knows {known}.",
            ProbeWarning,
            stacklevel=4,
        )
