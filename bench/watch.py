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
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tools.claims import Claim, keep, show
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import learnscope as ls

Step = Callable[[int], torch.Tensor]
Loop = tuple[nn.Module, torch.optim.Optimizer, Step]


def loop(vocabulary: int = 1000) -> Loop:
    """GPT-2 with a small vocabulary, which is the harder case: with its own, a step takes fifteen times as long."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=128, n_head=4, n_positions=64, vocab_size=vocabulary, bos_token_id=0, eos_token_id=0
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(vocabulary, (64, 8, 64), generator=torch.Generator().manual_seed(1))

    def step(number: int) -> torch.Tensor:
        batch = tokens[number % len(tokens)]
        optimizer.zero_grad()
        loss: torch.Tensor = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def tiny_loop() -> Loop:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(64, 20), torch.randint(4, (64,))

    def step(_number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def every_step() -> list[ls.Probe]:
    return [ls.GradientFlow(every=1), ls.Loss(), ls.LearningRate(every=1), ls.ParameterChange(every=10)]


def one_round(w: ls.Watch, watched_step: Step, plain_step: Step, steps: int) -> tuple[float, float]:
    """Seconds of the watched and of the unwatched steps, which alternate, and alternate in who goes first."""
    watched = plain = 0.0
    for number in range(steps):
        for turn in ("watched", "plain") if number % 2 else ("plain", "watched"):
            start = time.perf_counter()
            if turn == "watched":
                w.log(loss=watched_step(number))
                watched += time.perf_counter() - start
            else:
                plain_step(number)
                plain += time.perf_counter() - start
    return watched, plain


def one_run(make: Callable[[], Loop], probes: Callable[[], list[ls.Probe]], steps: int) -> tuple[float, float]:
    """The ratio, and the difference in milliseconds a step. No two loops are equally fast to the percent: they take
    turns at being the watched one."""
    loops = [make(), make()]
    ratios, differences = [], []
    for turn in range(2):
        (model, optimizer, watched_step), (_, _, plain_step) = loops if turn else loops[::-1]
        with (
            tempfile.TemporaryDirectory() as folder,
            ls.watch(model, optimizer, run=Path(folder) / "run", probes=probes(), strict=True) as w,
        ):
            one_round(w, watched_step, plain_step, 3)  # to warm up
            watched, plain = one_round(w, watched_step, plain_step, steps)
        ratios.append(watched / plain)
        differences.append((watched - plain) / steps * 1e3)
    return math.sqrt(ratios[0] * ratios[1]), sum(differences) / 2


def claims(runs: int, threads: int, quick: bool) -> list[Claim]:
    torch.set_num_threads(threads)
    steps = 5 if quick else 100
    few = 5 if quick else 60
    probes = {"every step": every_step, "default": ls.default_probes, "change": lambda: [ls.ParameterChange(every=1)]}
    ratios = {name: [one_run(loop, make, steps if name == "default" else few)[0] for _ in range(runs)]
              for name, make in probes.items()}  # fmt: skip
    fixed = [one_run(tiny_loop, ls.default_probes, 20 if quick else 2000)[1] for _ in range(runs)]
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
