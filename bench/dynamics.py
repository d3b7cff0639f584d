"""What following every example costs: time beside an untracked loop, attribution, and memory for a million examples.

    python bench/dynamics.py [--quick] [--rounds 7] [--threads 1]

The loop trains an MLP 64-256-256-10 on scikit-learn's digits, batch 64, and hands its own logits over at every step:
to a `LearningDynamicsAnalyzer`, and, in a comparison of its own and without a bound, to `ls.watch` with an
`ExampleLedger`, which also hears every step and backward and writes a run folder. Two equal loops
take turns at being the tracked one, epoch by epoch, since no two are equally fast to the percent: two rounds with the
roles exchanged make a pair, whose ratio is the geometric mean of both; the figure is the median of the pairs.
Attributing a transition to examples is measured as in bench/attribution.py. Memory is the peak of a process beyond what
it holds before, for 20 shuffled presentations of each example; ids 0..N−1, and again with ids spread over all 64-bit
integers.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attribution
import numpy as np
import torch
from sklearn.datasets import load_digits
from tools.figures import peak_beyond_now, report, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import learnscope as ls
from learnscope.dynamics import LearningDynamicsAnalyzer

BOUNDS = {
    "tracked by the analyzer / untracked": 1.10,
    "transition scores / two backwards an example": 0.1,
    "bytes an example, ids 0..N−1": 200.0,
    "bytes an example, any ids": 200.0,
}
Epoch = Callable[["Tracking | None"], float]


class Tracking(Protocol):
    """Either way of following examples."""

    def batch(self, ids: Tensor, x: Tensor, logits: Tensor, y: Tensor) -> None: ...
    def end_epoch(self) -> None: ...
    def close(self) -> None: ...


class Analyzer:
    def __init__(self, model: nn.Module, _optimizer: torch.optim.Optimizer, _folder: Path) -> None:
        self.model, self.epoch, self.analyzer = model, 0, LearningDynamicsAnalyzer(num_classes=10)

    def batch(self, ids: Tensor, x: Tensor, logits: Tensor, y: Tensor) -> None:
        self.analyzer.track_batch(self.model, x, y, ids, self.epoch, logits=logits)

    def end_epoch(self) -> None:
        self.analyzer.compute_epoch_statistics(None, self.model, self.epoch)
        self.epoch += 1

    def close(self) -> None:
        assert self.analyzer.frame()["presentations"].eq(self.epoch).all()


class Watched:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.w = ls.watch(model, optimizer, run=folder, probes=[ls.ExampleLedger()], strict=True)

    def batch(self, ids: Tensor, x: Tensor, logits: Tensor, y: Tensor) -> None:  # noqa: ARG002  (the protocol's)
        self.w.examples(ids, logits, y)

    def end_epoch(self) -> None:
        self.w.end_epoch()

    def close(self) -> None:
        self.w.close()


def loop(threads: int) -> tuple[nn.Module, torch.optim.Optimizer, Epoch]:
    """A model, its optimizer, and a function that trains for an epoch and returns its seconds."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def epoch(tracking: Tracking | None) -> float:
        start = time.perf_counter()
        for ids in torch.randperm(len(labels)).split(64):  # a DataLoader would take longer than all the rest
            x, y = images[ids], labels[ids]
            optimizer.zero_grad()
            logits = model(x)
            cross_entropy(logits, y).backward()
            optimizer.step()
            if tracking is not None:
                tracking.batch(ids, x, logits, y)
        if tracking is not None:
            tracking.end_epoch()
        return time.perf_counter() - start

    return model, optimizer, epoch


def cost(way: type[Analyzer] | type[Watched], name: str, rounds: int, epochs: int, threads: int) -> dict[str, float]:
    loops = [loop(threads), loop(threads)]
    ratios, plain_times = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * rounds + 2):
            (model, optimizer, tracked_epoch), (_, _, plain_epoch) = loops if number % 2 else loops[::-1]
            tracked = plain = 0.0
            tracking = way(model, optimizer, Path(folder) / str(number))
            for turn in range(epochs):
                if turn % 2:
                    tracked += tracked_epoch(tracking)
                plain += plain_epoch(None)
                if not turn % 2:
                    tracked += tracked_epoch(tracking)
            tracking.close()
            if number >= 2:  # the first pair warms up
                ratios.append(tracked / plain)
                plain_times.append(plain / epochs)
    pairs = [math.sqrt(one * other) for one, other in zip(ratios[::2], ratios[1::2], strict=True)]
    return {
        "untracked epoch, ms": statistics.median(plain_times) * 1e3,
        f"{name} / untracked": statistics.median(pairs),
        f"{name}, lowest pair": min(pairs),
        f"{name}, highest pair": max(pairs),
    }


def fill(examples: int, presentations: int, any_ids: bool) -> ls.Ledger:
    """A ledger of so many examples, with every optional column but gradient norms."""
    rng = np.random.default_rng(0)
    ledger = ls.Ledger()
    for epoch in range(presentations):
        order = rng.permutation(examples)
        for start in range(0, examples, 4096):
            ids = order[start : start + 4096]
            scores = rng.random((4, len(ids)))
            named = (ids * 0x9E3779B97F4A7C1) ^ (ids << 40) if any_ids else ids
            ledger.update(
                named, p_gold=scores[0], margin=scores[1], loss=scores[2], el2n=scores[3], correct=scores[0] > 0.5,
                target=ids % 1000, checksum=ids * 0.5, epoch=epoch,
            )  # fmt: skip
    assert len(ledger) == examples, "ids collide"
    assert ledger.summary()[0]["presentations"] == examples * presentations
    return ledger


def memory(examples: int, any_ids: bool) -> float:
    """Peak bytes an example, of the whole process."""
    fill(2000, 2, any_ids)  # what is loaded at first use is not the ledger's
    held: list[ls.Ledger] = []
    return peak_beyond_now(lambda: held.append(fill(examples, 20, any_ids))) * 2**20 / examples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few epochs and examples: does it run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", choices=("dense", "any"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    examples = 5_000 if options.quick else 1_000_000
    if options.memory:
        print(memory(examples, options.memory == "any"))
        return 0
    rounds, epochs = (1, 2) if options.quick else (options.rounds, 20)
    figures = cost(Analyzer, "tracked by the analyzer", rounds, epochs, options.threads)
    figures |= cost(Watched, "watched", rounds, epochs, options.threads)
    scores = attribution.cost(options.quick, repeats=1 if options.quick else 5)
    figures |= {f"transition {name}": scores[name] for name in ("scores, ms", "scores / two backwards an example")}
    for kind, name in (("dense", "bytes an example, ids 0..N−1"), ("any", "bytes an example, any ids")):
        command = [sys.executable, __file__, "--memory", kind, *(["--quick"] if options.quick else [])]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        figures[name] = float(output.split()[-1])
    held = report(figures, BOUNDS)
    if options.quick:
        return 0
    save("dynamics", figures, BOUNDS)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
