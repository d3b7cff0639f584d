"""What watching costs: a watched training loop beside an unwatched one, in one run.

A small GPT-2 (2 layers, width 128, batch 8 × 64) is trained twice side by side: watched and unwatched steps alternate,
so that whatever else the machine does falls on both. A round has so many steps that each probe has its share of them.
Two rounds with the roles exchanged make a run, whose ratio is the geometric mean of both. The fixed cost of a step is
measured in the same way on a tiny MLP, in milliseconds. Default probes look more often at the beginning of a run: what
they cost is given for the beginning alone, and for the whole of a longer run, from one and the same loop.

    python bench/watch.py [--runs 5] [--threads 1 2] [--quick]

Nothing is compiled at this size: that begins at 2²⁵ entries, and its seconds are in bench/delta.py.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tools.claims import Claim, keep, show
from tools.loops import Loop, gpt2, in_turns, pair
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls


class Watched:
    """What a user writes in a watched loop."""

    def __init__(self, w: ls.Watch) -> None:
        self.w = w

    def before_step(self, loss: Tensor) -> None:
        pass

    def after_step(self, loss: Tensor) -> None:
        self.w.log(loss=loss)


def tiny() -> Loop:
    """20-32-32-4: a step takes a fraction of a millisecond."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    x, y = torch.randn(64, 20), torch.randint(4, (64,))
    return Loop(model, torch.optim.Adam(model.parameters()), lambda _number: F.cross_entropy(model(x), y))


def every_step() -> list[ls.Probe]:
    return [ls.GradientFlow(every=1), ls.Loss(), ls.LearningRate(every=1), ls.ParameterChange(every=10)]


Cost = tuple[float, float]
"""Watched / unwatched, and the difference in milliseconds a step."""


def one_run(make: Callable[[], Loop], probes: Callable[[], list[ls.Probe]], lengths: Sequence[int]) -> list[Cost]:
    """The cost of the first steps of a loop, so many each; the loops take turns at being the watched one."""
    loops = [make(), make()]
    rounds = [_round(watched, plain, probes(), lengths) for watched, plain in (loops, loops[::-1])]
    return [
        (pair(one[0] / one[1], other[0] / other[1]), (one[0] - one[1] + other[0] - other[1]) / 2 / steps * 1e3)
        for steps, one, other in zip(lengths, *rounds, strict=True)
    ]


def _round(watched: Loop, plain: Loop, probes: list[ls.Probe], lengths: Sequence[int]) -> list[tuple[float, float]]:
    """Seconds of the watched and of the unwatched steps, up to each length."""
    sums, seconds, done = [], (0.0, 0.0), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        ls.watch(watched.model, watched.optimizer, run=Path(folder) / "run", probes=probes, strict=True) as w,
    ):
        in_turns(watched, Watched(w), plain, 3)  # to warm up
        gc.collect()  # what was made before is of neither loop
        for steps in lengths:
            more = in_turns(watched, Watched(w), plain, steps - done)
            seconds, done = (seconds[0] + more[0], seconds[1] + more[1]), steps
            sums.append(seconds)
    return sums


def claims(runs: int, threads: int, quick: bool) -> list[Claim]:
    torch.set_num_threads(threads)
    few = [5] if quick else [60]
    lengths, fixed_lengths = ([3, 5], [10, 20]) if quick else ([100, 600], [2_000, 10_000])
    chosen: dict[str, tuple[Callable[[], list[ls.Probe]], list[int], float]] = {
        "gradients at every step and changes at every tenth": (every_step, few, 1.04),
        "parameter change at every step": (lambda: [ls.ParameterChange(every=1)], few, 1.10),
        "default probes": (ls.default_probes, lengths, 1.01),
    }
    found = []
    for name, (probes, steps, bound) in chosen.items():
        costs = [one_run(gpt2, probes, steps) for _ in range(runs)]
        for place, length in enumerate(steps):
            of = f", the first {length} steps" if length != steps[-1] else f", {length} steps" if len(steps) > 1 else ""
            ratios = [run[place][0] for run in costs]
            text = f"GPT-2 of 0.5 M, {name}{of}: watched / unwatched"
            found.append(Claim(text, ratios, bound=bound, limit=1.0, threads=threads))
    fixed = [one_run(tiny, ls.default_probes, fixed_lengths) for _ in range(runs)]
    for place, length in enumerate(fixed_lengths):
        text = f"tiny MLP, default probes: fixed cost of a step, mean of {length:,}"
        values = [run[place][1] for run in fixed]
        found.append(Claim(text, values, bound=0.1, limit=0.0, unit="ms", threads=threads))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="a few steps, only to see that it runs")
    options = parser.parse_args()
    runs, threads = (1, [1]) if options.quick else (options.runs, options.threads)
    measured = [claim for count in threads for claim in claims(runs, count, options.quick)]
    held = show(measured)
    if not options.quick:
        keep("watch", measured)
    return int(not held and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
