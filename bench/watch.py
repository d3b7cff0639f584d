"""What watching costs: a watched training loop beside an unwatched one, in one run.

A small GPT-2 (2 layers, width 128, batch 8 × 64) is trained twice side by side: watched and unwatched steps alternate,
so that whatever else the machine does falls on both. A round has so many steps that each probe has its share of them.
Two rounds with the roles exchanged make a run, whose ratio is the geometric mean of both. The fixed cost of a step is
measured in the same way on a tiny MLP, in milliseconds.

    python bench/watch.py [--runs 5] [--threads 1 2] [--quick]

Nothing is compiled at this size: that begins at 2²⁵ entries, and its seconds are in bench/delta.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
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


def one_run(make: Callable[[], Loop], probes: Callable[[], list[ls.Probe]], steps: int) -> tuple[float, float]:
    """The ratio, and the difference in milliseconds a step; the loops take turns at being the watched one."""
    loops = [make(), make()]
    ratios, differences = [], []
    for watched, plain in (loops, loops[::-1]):
        with (
            tempfile.TemporaryDirectory() as folder,
            ls.watch(watched.model, watched.optimizer, run=Path(folder) / "run", probes=probes(), strict=True) as w,
        ):
            in_turns(watched, Watched(w), plain, 3)  # to warm up
            seconds, of_plain = in_turns(watched, Watched(w), plain, steps)
        ratios.append(seconds / of_plain)
        differences.append((seconds - of_plain) / steps * 1e3)
    return pair(*ratios), sum(differences) / 2


def claims(runs: int, threads: int, quick: bool) -> list[Claim]:
    torch.set_num_threads(threads)
    steps = 5 if quick else 100
    few = 5 if quick else 60
    probes = {"every step": every_step, "default": ls.default_probes, "change": lambda: [ls.ParameterChange(every=1)]}
    ratios = {name: [one_run(gpt2, make, steps if name == "default" else few)[0] for _ in range(runs)]
              for name, make in probes.items()}  # fmt: skip
    fixed = [one_run(tiny, ls.default_probes, 20 if quick else 2000)[1] for _ in range(runs)]
    named = {
        "every step": ("GPT-2 of 0.5 M, gradients at every step and changes at every tenth: watched / unwatched", 1.04),
        "default": ("GPT-2 of 0.5 M, default probes: watched / unwatched", 1.01),
        "change": ("GPT-2 of 0.5 M, parameter change at every step: watched / unwatched", 1.10),
    }
    return [
        *(Claim(text, ratios[name], bound=bound, limit=1.0, threads=threads) for name, (text, bound) in named.items()),
        Claim(
            "tiny MLP, default probes: fixed cost of a step", fixed, bound=0.1, limit=0.0, unit="ms", threads=threads
        ),
    ]


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
