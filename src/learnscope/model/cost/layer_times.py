"""Where the time of a pass goes: seconds of every module, with and without the modules that it calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from learnscope.model.cost.timing import Timed, take_turns, waiting_for
from learnscope.model.guard import guard
from learnscope.model.outputs.calls import call_of
from learnscope.model.outputs.evaluate import model_device
from learnscope.names import ROOT, resolve
from learnscope.task import Task

Path = tuple[str, ...]
"""The running modules from the model down to one of them; a shared module has several paths."""


@dataclass(slots=True)
class Stopwatch:
    """Hooks that measure, for every path of calls in a pass, the seconds that are not spent in calls below it."""

    clock: Callable[[], float]
    wait: Callable[[], None] = lambda: None
    own: dict[Path, float] = field(default_factory=dict)
    calls: dict[Path, int] = field(default_factory=dict)
    _open: list[tuple[Path, float, float]] = field(default_factory=list)
    """For each running call: its path, its start, and the seconds of the calls below it so far."""

    def begin(self, name: str) -> None:
        self.wait()
        path = (*self._open[-1][0], name) if self._open else (name,)
        self._open.append((path, self.clock(), 0.0))

    def end(self) -> None:
        self.wait()
        now = self.clock()
        path, began, below = self._open.pop()
        self.own[path] = self.own.get(path, 0.0) + (now - began - below)
        self.calls[path] = self.calls.get(path, 0) + 1
        if self._open:
            above, at, spent = self._open[-1]
            self._open[-1] = above, at, spent + (now - began)

    def clear(self) -> None:
        self.own, self.calls, self._open = {}, {}, []

    def watch(self, model: nn.Module) -> ExitStack:
        """Hooks on every module, removed when the stack is closed."""
        stack = ExitStack()
        for name, module in model.named_modules():
            begin = partial(self._on_begin, name or ROOT)
            stack.callback(module.register_forward_pre_hook(begin, prepend=True).remove)
            stack.callback(module.register_forward_hook(self._on_end).remove)
        return stack

    def _on_begin(self, name: str, _module: nn.Module, _args: Any) -> None:
        self.begin(name)

    def _on_end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.end()


@torch.no_grad()
def layer_times(
    model: nn.Module, task: Task, batch: Any, *, repeats: int, seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:  # fmt: skip
    """Seconds and calls of every module in a pass over `batch`, medians over passes; and the overhead of the hooks."""
    device = model_device(model)
    batch = task.to(batch, device)
    wait = waiting_for(device)
    watch = Stopwatch(clock, wait)
    passes: list[dict[Path, float]] = []

    def watched() -> None:
        watch.clear()
        with watch.watch(model):
            call.run()
        passes.append(watch.own)

    with guard(model):
        call = call_of(model, task, batch)
        bare = take_turns({"bare": Timed(call.run, seconds)}, repeats=repeats, wait=wait, clock=clock)["bare"]
        watched()
        passes.clear()  # the first pass with hooks is a warm-up
        spent = 0.0
        while len(passes) < 3 or (len(passes) < repeats and spent < seconds):
            watched()
            spent += sum(passes[-1].values())
    median = {path: statistics.median([own.get(path, 0.0) for own in passes]) for path in watch.own}
    modules = by_module(median, watch.calls)
    total = sum(median.values())
    without = statistics.median(bare.seconds)
    return {
        "modules": modules,
        "layers": by_layer(median),
        "total": total,
        "passes": len(passes),
        "overhead": total / without - 1 if without > 0 else None,
        "not_called": [name for name, _ in model.named_modules() if (name or ROOT) not in modules],
    }


def by_module(own: dict[Path, float], calls: dict[Path, int]) -> dict[str, dict[str, float]]:
    """Self and total seconds of each module over all its calls; a recursive call counts once."""
    modules: dict[str, dict[str, float]] = {}
    for path, seconds in own.items():
        for name in dict.fromkeys((path[-1], *path)):
            modules.setdefault(name, {"self": 0.0, "total": 0.0, "calls": 0})["total"] += seconds
        modules[path[-1]]["self"] += seconds
        modules[path[-1]]["calls"] += calls[path]
    return modules


def by_layer(own: dict[Path, float]) -> dict[str, float]:
    """Seconds of each layer: every module belongs to one, like parameters do."""
    layers: dict[str, float] = {}
    for path, seconds in own.items():
        layer = ROOT if path[-1] == ROOT else resolve(f"{path[-1]}.weight").layer
        layers[layer] = layers.get(layer, 0.0) + seconds
    return layers
