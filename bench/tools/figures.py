"""Timing side by side, memory of a process, and a table of figures beside their bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def interleaved(
    functions: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every function, the functions taking turns so that all see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(repeats + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if round_:  # the first round warms up
                times[name].append(clock() - start)
    return times


def peak_beyond_now(action: Callable[[], object]) -> float:
    """Peak resident memory of an action beyond what the process holds before it, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the high-water mark so far
    before = _status("VmRSS")
    action()
    return _status("VmHWM") - before


def in_fresh_process(script: str, *arguments: str) -> float:
    """The number that a script prints last when it is asked for its memory in a process of its own."""
    return float(printed_by(script, *arguments).split()[-1])


def printed_by(script: str, *arguments: str) -> str:
    """The last line that a script prints when it is asked for its memory in a process of its own."""
    command = [sys.executable, script, "--memory", *arguments, *sys.argv[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def _status(field: str) -> float:
    """A field of the process's memory status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def report(figures: Mapping[str, float], bounds: Mapping[str, float]) -> bool:
    """Print the figures; whether all bounds hold."""
    width = max(map(len, figures)) + 2
    print(f"{'':{width}}{'measured':>12}{'bound':>10}")
    held = True
    for name, value in figures.items():
        bound = bounds.get(name)
        missed = bound is not None and value > bound
        held = held and not missed
        print(f"{name:{width}}{value:>12.4g}{'' if bound is None else format(bound, 'g'):>10}{'  missed' * missed}")
    return held


def save(name: str, figures: Mapping[str, float], bounds: Mapping[str, float], **facts: object) -> None:
    """Keep the figures beside the benchmarks."""
    target = Path(__file__).parents[1] / "results" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cores": os.cpu_count(), **facts}
    target.write_text(json.dumps({**facts, "bounds": dict(bounds), "figures": dict(figures)}, indent=2) + "\n")
