"""What adapters began with, kept with a session: B₀A₀ of PiSSA, MiLoRA and their like is written down nowhere else."""

from __future__ import annotations

from typing import Any

from learnscope.core.moment import Moment
from learnscope.model.adapters.families import NO_START
from learnscope.model.adapters.inventory import find_adapters
from learnscope.model.adapters.start import Start, keep_start, know_start, lora_layers, start_of

LEFT, RIGHT, METHOD = "start_left", "start_right", "start_method"


def open_adapters(moment: Moment) -> None:
    """Refuse a model without adapters; keep the factors that they begin with, or take them up from the state.

    What this process knows comes first: it made the base that the factors are taken from. A session that opens before
    the first step takes the factors as they stand where they hold a part of the weight, unless they were loaded for
    inference: those are trained already.
    """
    adapters = find_adapters(moment.model, moment.optimizers)
    begins = moment.step == 0 and moment.source not in ("replay", "audit")
    # LoRA's own layers only, by identity: several adapters of one module are several entries of it
    plain = {id(layer) for _, layer in lora_layers(moment.model)}
    for one in adapters.found:
        if id(one.layer) not in plain:
            continue
        key = f"{one.name}/{one.scope}"
        if start_of(one.layer, one.name) is None:
            if f"{LEFT}/{key}" in moment.state:
                know_start(one.layer, one.name, _from_state(moment.state, key))
            elif begins and one.parts.reason == NO_START and not one.for_inference:
                keep_start(one.layer, one.name, None)
        start = start_of(one.layer, one.name)
        if start is not None:
            moment.state |= {f"{LEFT}/{key}": start.left, f"{RIGHT}/{key}": start.right}
            moment.state |= {} if start.method is None else {f"{METHOD}/{key}": start.method}


def _from_state(state: dict[str, Any], key: str) -> Start:
    return Start(state[f"{LEFT}/{key}"], state[f"{RIGHT}/{key}"], state.get(f"{METHOD}/{key}"))
