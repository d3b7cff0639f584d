"""Where the time of a pass goes: seconds of every module, with and without the modules that it calls."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from learnscope.model.cost.calls import call_of
from learnscope.model.cost.timing import Timed, take_turns, waiting_for
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.names import ROOT, resolve
from learnscope.task import Task

Path = tuple[str, ...]
"""The running modules from the model down to one of them; a shared module has several paths."""


@contextmanager
def stopwatch(
    model: nn.Module, clock: Callable[[], float], wait: Callable[[], None] = lambda: None
) -> Iterator[tuple[dict[Path, float], dict[Path, int]]]:
    """For every path of calls, the seconds that are not spent in calls below it, and the number of calls; by hooks."""
    self_seconds: defaultdict[Path, float] = defaultdict(float)
    calls: Counter[Path] = Counter()
    running: list[tuple[Path, float, float]] = []  # path, start, and the seconds of the calls below so far

    def begin(name: str, *_: Any) -> None:
        wait()
        path = (*running[-1][0], name) if running else (name,)
        running.append((path, clock(), 0.0))

    def end(*_: Any) -> None:
        wait()
        now = clock()
        path, began, below = running.pop()
        self_seconds[path] += now - began - below
        calls[path] += 1
        if running:
            above, start, spent = running[-1]
            running[-1] = above, start, spent + (now - began)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(begin, name or ROOT), prepend=True).remove)
            stack.callback(module.register_forward_hook(end).remove)
        yield self_seconds, calls


@torch.no_grad()
def layer_times(
    model: nn.Module, task: Task, batch: Any, *, repeats: int, seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:  # fmt: skip
    """Seconds and calls of every module in a pass over `batch`, medians over passes; and the overhead of the hooks."""
    device = model_device(model)
    batch = task.to(batch, device)
    wait = waiting_for(device)
    passes: list[dict[Path, float]] = []
    with guard(model):
        call = call_of(model, task, batch)
        bare = take_turns({"bare": Timed(call.run, seconds)}, repeats=repeats, wait=wait, clock=clock)["bare"]
        spent, warm = 0.0, False  # the first pass with hooks is a warm-up
        while len(passes) < 3 or (len(passes) < repeats and spent < seconds):
            with stopwatch(model, clock, wait) as (self_seconds, calls):
                call.run()
            if warm:
                passes.append(self_seconds)
                spent += sum(self_seconds.values())
            warm = True
    median = {path: statistics.median([times.get(path, 0.0) for times in passes]) for path in self_seconds}
    modules: dict[str, dict[str, float]] = {}
    for path, own in median.items():
        for name in dict.fromkeys((path[-1], *path)):  # a recursive call counts once
            modules.setdefault(name, {"self": 0.0, "total": 0.0, "calls": 0})["total"] += own
        modules[path[-1]]["self"] += own
        modules[path[-1]]["calls"] += calls[path]
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


def by_layer(self_seconds: dict[Path, float]) -> dict[str, float]:
    """Seconds of each layer: every module belongs to one, like parameters do."""
    layers: defaultdict[str, float] = defaultdict(float)
    for path, seconds in self_seconds.items():
        layers[ROOT if path[-1] == ROOT else resolve(f"{path[-1]}.weight").layer] += seconds
    return dict(layers)
