"""Models that are timed for a tenth of the seconds that an audit takes for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

SHARE = 0.1


def shorten_timing(setattr_: Callable[[Any, str, Any], None] = setattr) -> None:
    """An audit times passes for seconds, and a processor is busy meanwhile: how fast the models of tests are matters to
    nobody. As many passes are timed as the smallest budget allows, at least."""
    from learnscope.model.cost import exported, layer_times, speed, timing

    def shorter(call: timing.Timed) -> timing.Timed:
        return dataclasses.replace(call, seconds=SHARE * call.seconds)

    def take_turns(calls: Any, **options: Any) -> Any:
        return timing.take_turns({key: shorter(call) for key, call in calls.items()}, **options)

    def take_pairs(base: timing.Timed, others: Any, **options: Any) -> Any:
        return timing.take_pairs(shorter(base), {key: shorter(call) for key, call in others.items()}, **options)

    setattr_(speed, "take_turns", take_turns)
    setattr_(layer_times, "take_turns", take_turns)
    setattr_(exported, "take_pairs", take_pairs)
