"""What watching costs: step time of a watched loop over that of an unwatched one, in one run.

The model is a small GPT-2 (2 layers, width 128, batch 8 × 64), trained twice side by side: every watched step is
followed by an unwatched one, so that whatever else the machine does falls on both. Rounds of 100 steps, so that
each round has every probe's share; the figure is the median of the rounds' ratios.

    python bench/watch.py [--rounds 7] [--threads 1] [--quick]

Plotting and compiling are not part of a step; what they take is printed beside.
"""

from __future__ import annotations

import argparse
import json
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
        lambda: [ls.GradientFlow(every=1), ls.Loss(), ls.LearningRate(), ls.ParameterChange(every=10)],
    ),
    "default": (1.03, ls.default_probes),
}


def loop(vocabulary: int) -> tuple[GPT2LMHeadModel, torch.optim.Optimizer, Callable[[int], torch.Tensor]]:
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
    _, _, plain_step = loop(vocabulary)
    model, optimizer, watched_step = loop(vocabulary)
    ratios, plain_times = [], []
    with ls.watch(model, optimizer, run=folder, probes=probes, strict=True) as w:
        for number in range(5):  # warm-up
            plain_step(number), w.log(loss=watched_step(number))
        for _ in range(rounds):
            plain = watched = 0.0
            for number in range(steps):
                start = time.perf_counter()
                loss = watched_step(number)
                w.log(loss=loss)
                middle = time.perf_counter()
                plain_step(number)
                end = time.perf_counter()
                watched += middle - start
                plain += end - middle
            ratios.append(watched / plain)
            plain_times.append(plain / steps)
    start = time.perf_counter()
    ls.open_run(folder).report()
    report = time.perf_counter() - start
    cost = ls.open_run(folder).frame().drop_duplicates(["probe", "step"]).groupby("probe").cost.median() * 1e3
    return {
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "step_ms": statistics.median(plain_times) * 1e3,
        "report_s": report,
        **{f"{probe}_ms": value for probe, value in cost.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, nargs="*", default=[1000, 50257])
    parser.add_argument("--quick", action="store_true", help="one round, small vocabulary: only that it runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds, steps, sizes = (1, 100, [1000]) if options.quick else (options.rounds, 100, options.vocabulary)
    results: dict[str, dict[str, float]] = {}
    missed = False
    for name, (bound, probes) in CLAIMS.items():
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
