"""What following every example costs: time beside an unwatched loop, and the ledger's growth with its examples.

    python bench/dynamics.py [--quick] [--runs 5] [--threads 1]

The loop trains an MLP 64-256-256-10 on scikit-learn's digits, batch 64. At every step it hands its own logits over, to
a `LearningDynamicsAnalyzer` and, in a comparison of its own, to `ls.watch` with an `ExampleLedger`, which also hears
every step and backward and writes a run folder; or it calls `track_batch(model, x, y, ids, epoch)` after the step, as
it is documented, without logits: its limit is a loop that runs the model once more by itself. The same without logits
for a model in a class of its own, whose forward may do anything, so that it runs under the guard.
Equal loops take turns at being the tracked one, epoch by epoch, since no two are equally fast to the percent: two
rounds with the roles exchanged make a run, whose ratio is the geometric mean of both.

A ledger by itself is given shuffled presentations in batches of 4,096, of 10⁴ to 10⁷ examples: processor time of an
epoch after the first; the exponent is that of examples, fitted to the logarithms. Memory is the peak of a process
beyond what it holds before, file is what `save` writes; ids are 0..N−1, or spread over all 64-bit integers.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.datasets import load_digits
from tools.claims import Claim, keep, show
from tools.figures import peak_beyond_now
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import learnscope as ls
from learnscope.dynamics import LearningDynamicsAnalyzer

SIZES = (10**4, 10**5, 10**6, 10**7)
ROW = 112
"""Bytes of an example in the ledger's memory, without its place in the index."""
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


class Documented(Analyzer):
    """`track_batch` as it is documented: without logits."""

    def batch(self, ids: Tensor, x: Tensor, logits: Tensor, y: Tensor) -> None:  # noqa: ARG002  (the protocol's)
        self.analyzer.track_batch(self.model, x, y, ids, self.epoch)


class SecondForward(Analyzer):
    """A bare forward of the batch: the least that a loop without logits can do."""

    def batch(self, ids: Tensor, x: Tensor, logits: Tensor, y: Tensor) -> None:  # noqa: ARG002  (the protocol's)
        with torch.no_grad():
            self.model(x)

    def end_epoch(self) -> None: ...

    def close(self) -> None: ...


class Watched:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.w = ls.watch(model, optimizer, run=folder, probes=[ls.ExampleLedger()], strict=True)

    def batch(self, ids: Tensor, x: Tensor, logits: Tensor, y: Tensor) -> None:  # noqa: ARG002  (the protocol's)
        self.w.examples(ids, logits, y)

    def end_epoch(self) -> None:
        self.w.end_epoch()

    def close(self) -> None:
        self.w.close()


class OwnClass(nn.Module):
    """A model whose forward may do anything, as far as one can tell."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


def loop(threads: int, *, own_class: bool = False) -> tuple[nn.Module, torch.optim.Optimizer, Epoch]:
    """A model, its optimizer, and a function that trains for an epoch and returns its seconds."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model = OwnClass(body) if own_class else body
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


def ratios(way: type[Analyzer] | type[Watched], runs: int, epochs: int, threads: int, **made: Any) -> list[float]:
    """A tracked loop's time over an untracked one's, of every run."""
    loops = [loop(threads, **made), loop(threads, **made)]
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * runs + 1):
            (model, optimizer, tracked_epoch), (_, _, plain_epoch) = loops if number % 2 else loops[::-1]
            tracked = plain = 0.0
            tracking = way(model, optimizer, Path(folder) / str(number))
            gc.collect()  # what was made before is of neither loop
            for turn in range(epochs):
                if turn % 2:
                    tracked += tracked_epoch(tracking)
                plain += plain_epoch(None)
                if not turn % 2:
                    tracked += tracked_epoch(tracking)
            tracking.close()
            if number:  # the first round warms up
                rounds.append(tracked / plain)
    return [math.sqrt(one * other) for one, other in zip(rounds[::2], rounds[1::2], strict=True)]


def present(ledger: ls.Ledger, examples: int, epoch: int, any_ids: bool) -> float:
    """Show every example once, in a random order; processor time of the updates alone."""
    rng = np.random.default_rng(epoch)
    order, scores, seconds = rng.permutation(examples), rng.random((4, 4096)), 0.0
    for start in range(0, examples, 4096):
        ids = order[start : start + 4096]
        p, margin, loss, el2n = scores[:, : len(ids)]
        named = (ids * 0x9E3779B97F4A7C1) ^ (ids << 40) if any_ids else ids
        given: dict[str, Any] = {"correct": p > 0.5, "target": ids % 1000, "checksum": ids * 0.5}
        began = time.thread_time()
        ledger.update(named, p_gold=p, margin=margin, loss=loss, el2n=el2n, epoch=epoch, **given)
        seconds += time.thread_time() - began
    return seconds


def touch(rows: Any, epoch: int) -> float:
    """Add to rows as large as a ledger's, all once in a random order; processor time of that alone."""
    order, seconds = np.random.default_rng(epoch).permutation(len(rows)), 0.0
    for start in range(0, len(rows), 4096):
        ids = order[start : start + 4096]
        began = time.thread_time()
        rows[ids] += 1.0
        seconds += time.thread_time() - began
    return seconds


def grown(examples: int, any_ids: bool, runs: int) -> dict[str, Any]:
    """Memory and file of a ledger in bytes an example, and the seconds of an epoch in every run, beside the least."""
    present(ls.Ledger(), 2000, 0, any_ids)  # what is loaded at first use is not the ledger's
    ledger = ls.Ledger()
    peak = peak_beyond_now(lambda: [present(ledger, examples, epoch, any_ids) for epoch in range(2)])
    repeats = max(1, 200_000 // examples)  # a short epoch several times, to be timed as well
    epochs = iter(range(2, 2 + runs * repeats))
    seconds = [
        sum(present(ledger, examples, next(epochs), any_ids) for _ in range(repeats)) / repeats for _ in range(runs)
    ]
    assert len(ledger) == examples, "ids collide"
    with tempfile.TemporaryDirectory() as folder:
        ledger.save(Path(folder) / "ledger")
        size = (Path(folder) / "ledger").stat().st_size
    rows = np.zeros((examples, ROW // 8))
    touch(rows, 0)
    least = [sum(touch(rows, n) for n in range(repeats)) / repeats for _ in range(runs)]
    # of few examples, what the process holds is not measured to the byte
    return {"memory": peak * 2**20 / examples, "file": size / examples, "seconds": seconds, "least": least}


def growth(sizes: tuple[int, ...], any_ids: bool, runs: int) -> list[Claim]:
    """Claims of ledgers of these sizes, each in processes of its own."""
    kind, found = "any ids" if any_ids else "ids 0..N−1", {}
    for size in sizes:
        # memory is that of a whole process: once for each run, where that does not take minutes
        times = runs if size == 10**6 else 1
        commands = [
            [sys.executable, __file__, "--ledger", str(size), str(int(any_ids)), str(runs if n == 0 else 1)]
            for n in range(times)
        ]
        found[size] = [
            json.loads(subprocess.run(c, capture_output=True, text=True, check=True).stdout) for c in commands
        ]

    def exponents(what: str) -> list[float]:
        each = [[found[size][0][what][run] for size in sizes] for run in range(runs)]
        return [float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]) for seconds in each]

    name, least = f"exponent of the examples in an epoch's time, {kind}", float(np.median(exponents("least")))
    note = f"limit: adding to rows of {ROW} bytes in an array"
    claims = [Claim(name, exponents("seconds"), bound=1.05, limit=least, unit="", note=note)]
    for size in sizes[2:]:
        memory, files = ([one[what] for one in found[size]] for what in ("memory", "file"))
        name = f"of {size:,} examples, {kind}"
        note = "" if len(memory) > 1 else "one process"
        bound = 200.0 if len(memory) >= 5 else None  # what is measured once is no claim
        claims.append(Claim(f"memory {name}", memory, bound=bound, unit="bytes an example", note=note))
        claims.append(Claim(f"file {name}", files, bound=bound, unit="bytes an example", note=note))
    return claims


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few epochs and examples: does it run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ledger", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ledger:
        examples, any_ids, runs = options.ledger
        print(json.dumps(grown(examples, bool(any_ids), runs)))
        return 0
    runs, epochs, threads = (1, 2, options.threads) if options.quick else (options.runs, 10, options.threads)
    forward = ratios(SecondForward, runs, epochs, threads)
    bare = float(np.median(forward))
    claims = [
        Claim("watched with a ledger / unwatched", ratios(Watched, runs, epochs, threads), 1.05, 1.0),
        Claim("tracked by the analyzer, with logits / untracked", ratios(Analyzer, runs, epochs, threads), 1.05, 1.0),
        Claim("tracked without logits / untracked", ratios(Documented, runs, epochs, threads), 1.5, bare),
        Claim(
            "tracked without logits, a model of one's own class / untracked",
            ratios(Documented, runs, epochs, threads, own_class=True), limit=bare,
        ),
    ]  # fmt: skip
    sizes = (500, 1000, 2000) if options.quick else SIZES
    claims += [claim for any_ids in (False, True) for claim in growth(sizes, any_ids, runs)]
    held = show(claims)
    if options.quick:
        return 0
    keep("dynamics", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
