"""How long an audit will take, from two timed passes and the passes that are planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from learnscope.model.cost.speed import MAIN_SHARE
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.reference import reference_outputs
from learnscope.posttrain.planning.depth import Depth, Share
from learnscope.posttrain.planning.effort import OneExample, Passes
from learnscope.task import Task

FIXED = {"performance": 1.0, "bit_widths": 2.5, "robustness": 2.0}
"""Seconds of each part that do not depend on the model: imports, preparing, figures."""
WARM = 1.25
"""Times as long as its seconds that a setting is timed, with its warm-up."""
FEWEST_PASSES = 5
"""Passes of a setting, with its warm-up, however slow it is."""
RERUN = 0.7
"""Of the passes over variants of bits, what is run: of single units only what comes after them."""
INTEGERS, INTEGER_SECONDS = 150.0, 2.0
"""Passes of the model that take as long as those of its exported copies, most of them in 4 bits; and seconds at
least."""
NOISE = 10_000.0
"""Work of drawing all noise on the weights, for each of them."""
ROUNDED, BY_METHOD = 6_000.0, 6_000.0
"""Work of rounding weights to the nearest in all ways that are tried, for each of them, and by a calibrated method."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """By part: forward passes of an example, and seconds."""

    forwards: Mapping[str, int]
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def timed_passes(
    model: nn.Module, task: Task, batch: Any, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of two passes over the batch, each after one to warm up: with its losses, and beside its own outputs."""
    batch = task.to(batch, model_device(model))
    with torch.no_grad(), guard(model):
        task.outputs(model, batch)
        begin = clock()
        losses = task.outputs(model, batch).losses
        if losses is not None:
            float(losses.sum())  # waits for the device
        plain = clock() - begin
        [reference] = reference_outputs(model, task, [batch])
        float(reference.compare(task.positions(model, batch).logits).mse.sum())
        begin = clock()
        float(reference.compare(task.positions(model, batch).logits).mse.sum())
        return {"plain": plain, "compared": clock() - begin}


def speeds(seconds: Mapping[str, float], one: OneExample, examples: int) -> dict[str, float]:
    """Work of a second by the kind of pass, from timed passes over so many examples; gradients as plain passes."""
    plain, compared = (
        examples * passes.work(one) / max(seconds[kind], 1e-9)
        for kind, passes in (("plain", Passes(plain=1)), ("compared", Passes(compared=1)))
    )
    return {"plain": plain, "compared": compared, "gradient": plain}


def seconds_of(passes: Passes, one: OneExample, examples: float, speed: Mapping[str, float]) -> float:
    return sum(examples * work / speed[kind] for kind, work in passes.work_by_kind(one).items())


def timed_settings(
    settings: Sequence[tuple[float, bool]], each: float, one: OneExample, speed: Mapping[str, float]
) -> float:
    """Seconds of timing settings of so many examples; the main one, marked, has `MAIN_SHARE` times as long.

    Every setting is also run once to count its operations.
    """
    total = 0.0
    for examples, main in settings:
        once = seconds_of(Passes(plain=1), one, examples, speed)
        total += once + max(WARM * each * (MAIN_SHARE if main else 1), FEWEST_PASSES * once)
    return total


def estimated(
    model: nn.Module, one: OneExample, examples: int, depth: Depth, parts: Sequence[str], speed: Mapping[str, float],
    timed: int, performance: float = 0.0,
) -> Estimate:  # fmt: skip
    """`speed` is the work of a second by kind; exported copies are timed on `timed` examples; `performance` is what
    timing and memory take."""
    planned: dict[str, tuple[Passes, Share]] = {
        "performance": (Passes(plain=1), Share(examples)),
        "bit_widths": (depth.bit_passes(model), depth.bits),
        "robustness": (depth.robustness, depth.attacks),
    }
    weights = sum(parameter.numel() for parameter in model.parameters())
    forwards, seconds = {}, {}
    for part in parts:
        passes, share = planned[part]
        forwards[part] = round(share.examples * passes.forwards)
        short = one.shortened(share.tokens) if share.tokens else one
        took = seconds_of(passes, short, share.examples, speed)
        if part == "performance":
            took += performance
        if part == "bit_widths":
            took = RERUN * took + INTEGER_SECONDS + seconds_of(Passes(plain=INTEGERS), short, timed, speed)
            took += (ROUNDED + depth.methods * BY_METHOD) * weights / speed["plain"]
        if part == "robustness":
            took += NOISE * weights / speed["plain"]
        seconds[part] = FIXED[part] + took
    return Estimate(forwards, seconds)


def remaining(planned: Mapping[str, float], took: Mapping[str, float]) -> float:
    """Seconds that the parts to come will take, if the estimate is as far off for them as for those that are done.

    >>> remaining({"a": 10, "b": 20, "c": 5}, {}), remaining({"a": 10, "b": 20, "c": 5}, {"a": 20})
    (35, 50.0)
    """
    expected = sum(planned[part] for part in took)
    left = sum(seconds for part, seconds in planned.items() if part not in took)
    return left * sum(took.values()) / expected if expected else left


def in_words(seconds: float) -> str:
    """
    >>> in_words(4.2), in_words(84), in_words(160), in_words(700)
    ('5 s', '85 s', '2.5 min', '12 min')
    """
    if seconds < 120:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 600:
        return f"{round(seconds / 30) / 2:g} min"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
