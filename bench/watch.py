"""What watching costs: step time of a watched loop over that of an unwatched one, in one run.

The model is a small GPT-2 (2 layers, width 128, batch 8 × 64), trained twice side by side: watched and unwatched steps
alternate, so that whatever else the machine does falls on both. Rounds of 100 steps, so that
each round has every probe's share. Two rounds with the roles exchanged make a pair, whose ratio is the geometric mean
of both; the figure is the median of the pairs.

    python bench/watch.py [--rounds 5] [--threads 1] [--vocabulary 1000 50257] [--quick]

The small vocabulary is the harder case: with GPT-2's own, a step takes fifteen times as long.

Plotting is not part of a step; what it takes is printed beside. Nothing is compiled at this size: that begins at
2²⁵ entries, and its seconds are in bench/delta.py.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import learnscope as ls

CLAIMS = {
    "every step": (
        1.10,
        lambda: [ls.GradientFlow(every=1), ls.Loss(), ls.LearningRate(every=1), ls.ParameterChange(every=10)],
    ),
    "default": (1.03, ls.default_probes),
}


Step = Callable[[int], torch.Tensor]


def loop(vocabulary: int) -> tuple[GPT2LMHeadModel, torch.optim.Optimizer, Step]:
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


def measure(probes: list[ls.Probe], vocabulary: int, rounds: int, steps: int, folder: Path) -> dict[str, float]:
    """Two equal loops take turns at being the watched one, since no two are equally fast to the percent."""
    loops = [loop(vocabulary), loop(vocabulary)]
    ratios, plain_times, costs = [], [], []
    for number in range(2 * rounds):
        (model, optimizer, watched_step), (_, _, plain_step) = loops if number % 2 else loops[::-1]
        with ls.watch(model, optimizer, run=folder / str(number), probes=probes, strict=True) as w:
            watched, plain = one_round(w, watched_step, plain_step, steps)
        ratios.append(watched / plain)
        plain_times.append(plain / steps)
        frame = ls.open_run(folder / str(number)).frame().drop_duplicates(["probe", "step"])
        costs.append(frame.groupby("probe").cost.median() * 1e3)
    pairs = [math.sqrt(first * second) for first, second in zip(ratios[::2], ratios[1::2], strict=True)]
    start = time.perf_counter()
    ls.open_run(folder / "0").report()
    return {
        "ratio": statistics.median(pairs),
        "lowest": min(pairs),
        "highest": max(pairs),
        "step_ms": statistics.median(plain_times) * 1e3,
        "report_s": time.perf_counter() - start,
        **{f"{probe}_ms": value for probe, value in costs[-1].items()},
    }


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, nargs="*", default=[1000], help="50257 takes minutes a round")
    parser.add_argument("--quick", action="store_true", help="a few steps, only to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds, steps, sizes = (1, 10, [1000]) if options.quick else (options.rounds, 100, options.vocabulary)
    results: dict[str, dict[str, float]] = {}
    missed = False
    for name, (bound, probes) in list(CLAIMS.items())[: 1 if options.quick else None]:
        for vocabulary in sizes:
            with tempfile.TemporaryDirectory() as folder:
                figures = measure(probes(), vocabulary, rounds, steps, Path(folder) / "run")
            results[f"{name}, vocabulary {vocabulary}"] = {"bound": bound, **figures}
            missed |= figures["ratio"] > bound
            costs = ", ".join(f"{key[:-3]} {v:.2f}" for key, v in figures.items() if key.endswith("_ms"))
            print(
                f"{name:>10}, vocabulary {vocabulary:>5}: watched/unwatched {figures['ratio']:.4f} "
                f"({figures['lowest']:.3f} to {figures['highest']:.3f}, bound {bound}); ms: {costs}; "
                f"report {figures['report_s']:.1f} s"
            )
    if not options.quick:
        path = Path(__file__).parent / "results" / "watch.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps({"threads": options.threads, "torch": torch.__version__, **results}, indent=1) + "\n"
        )
    return int(missed and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
