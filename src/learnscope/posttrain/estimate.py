"""How long an audit will take, from a timed forward pass and the passes that are planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.posttrain.depth import Depth, Share
from learnscope.posttrain.effort import OneExample, Passes, bit_passes, robustness_passes
from learnscope.task import Task

FIXED = {"performance": 12.0, "bit_widths": 4.0, "robustness": 3.0}
"""Seconds of each part that do not depend on the model: warming up and timing passes, a process to measure memory in,
compiling."""
RERUN = 0.7
"""Of the passes over variants of bits, what is run: of single units only what comes after them."""
INTEGERS = 140.0
"""Passes of the model that take as long as those of its exported copies, most of them in 4 bits."""
NOISE = 10_000.0
"""Work of drawing all noise on the weights, for each of them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """By part: forward passes of an example, and seconds."""

    forwards: Mapping[str, int]
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def timed_forward(model: nn.Module, task: Task, batch: Any, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one forward pass with its losses, after one to warm up."""
    batch = task.to(batch, model_device(model))
    with torch.no_grad(), guard(model):
        task.outputs(model, batch)
        begin = clock()
        losses = task.outputs(model, batch).losses
        if losses is not None:
            float(losses.sum())  # waits for the device
        return clock() - begin


def estimated(
    model: nn.Module, one: OneExample, examples: int, depth: Depth, parts: Sequence[str], speed: float, timed: int
) -> Estimate:
    """`speed` is the work of a second, in the unit of `Passes.work`; exported copies are timed on `timed` examples."""
    planned: dict[str, tuple[Passes, Share]] = {
        "performance": (Passes(plain=1), Share(examples)),
        "bit_widths": (bit_passes(model), depth.bits),
        "robustness": (robustness_passes(depth.steps, depth.transfer_steps), depth.attacks),
    }
    forwards, seconds = {}, {}
    for part in parts:
        passes, share = planned[part]
        forwards[part] = round(share.examples * passes.forwards)
        short = one.shortened(share.tokens) if share.tokens else one
        work = share.examples * passes.work(short)
        if part == "bit_widths":
            work = RERUN * work + INTEGERS * timed * Passes(plain=1).work(short)
        if part == "robustness":
            work += NOISE * sum(parameter.numel() for parameter in model.parameters())
        seconds[part] = FIXED[part] + work / speed
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
    >>> in_words(4.2), in_words(84), in_words(700)
    ('5 s', '85 s', '12 min')
    """
    if seconds < 120:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
