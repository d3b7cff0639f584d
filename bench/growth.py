"""How cost grows with what there is: steps of a run, tensors and parameters of a model, records, examples.

    python bench/growth.py [--quick] [--runs 5] [--only table …] [--records 10000000] [--examples 10000000]

Each subject is measured at three sizes, a third and a ninth of the largest; a run is the slope of its cost over these,
both as logarithms, by least squares. 1 is linear; a fixed cost makes the slope smaller. In processor time of one
thread, after turns at the two smaller sizes that tell what the largest would take: a subject that would take longer
than it may (`--patience`) gets a smaller one, and the claim says which. Cost of watching is that of a watched loop less
that of the same loop unwatched. A model of 10⁹ parameters is not made: its time is extrapolated.
Exits with 1 if a stated bound is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tools.claims import Claim, keep, show
from torch import nn

import learnscope as ls

BOUND = 1.05
STEP_AND_TIME = re.compile(r'(.*?"step":)(\d+)(.*?"time":)([\d.]+)(.*\n)')
Costs = dict[str, float]
"""Seconds of each part."""


def probes(change: int = 1) -> list[ls.Probe]:
    return [ls.GradientFlow(every=1), ls.LearningRate(every=1), ls.ParameterChange(every=change)]


@contextmanager
def timed(costs: Costs, part: str) -> Iterator[None]:
    start = time.process_time()
    yield
    costs[part] = costs.get(part, 0.0) + time.process_time() - start


def read_again(run: Path, costs: Costs) -> None:
    with timed(costs, "findings"):
        ls.open_run(run).findings()
    with timed(costs, "report"):
        ls.open_run(run).report()


def steps(size: int, folder: Path) -> Costs:
    """Watching so many steps of a small model, from opening to closing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(16, 8), torch.randn(16, 4)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    costs: Costs = {}
    with (
        timed(costs, "watched"),
        ls.watch(model, optimizer, run=folder, probes=[*probes(change=10), ls.Loss()], strict=True) as w,
    ):
        for _ in range(size):
            w.log(loss=step())
    with timed(costs, "plain"):
        for _ in range(size):
            step()
    return {"watching": costs["watched"] - costs["plain"]}


def measured_steps(model: nn.Module, folder: Path, number: int) -> float:
    """Watching a step, gradients and change of all parameters measured and written, after a first one to warm up."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    costs: Costs = {}
    optimizer.step()
    with timed(costs, "plain"):
        for _ in range(number):
            optimizer.step()
    with ls.watch(model, optimizer, run=folder, probes=probes(), strict=True) as w:
        optimizer.step()
        written = len(list(w.run.records()))  # what waits is written when the run is asked for
        with timed(costs, "watched"):
            for _ in range(number):
                optimizer.step()
            run = w.run
        assert len(list(run.records())) == written + number * len(probes())
    return (costs["watched"] - costs["plain"]) / number


def tensors(size: int, folder: Path) -> Costs:
    """A model of so many tensors of 16 or 4 entries."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(4, 4) for _ in range(size // 2))
    costs = {"watching a step": measured_steps(model, folder, 5)}
    read_again(folder, costs)
    return costs


def parameters(size: int, folder: Path) -> Costs:
    """A model of so many parameters, in matrices of 1024 × 1024."""
    model = nn.ParameterList(torch.full((1024, 1024), 0.1) for _ in range(max(1, round(size / 2**20))))
    return {"watching a step": measured_steps(model, folder, 3)}


def write_run(folder: Path, size: int) -> None:
    """A run of so many records: those of 100 watched steps, over and over with later steps and times."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    once = [ls.GradientFlow(every=1), ls.LearningRate(every=1), ls.Loss()]
    with ls.watch(model, optimizer, run=folder, probes=once, strict=True) as w:
        for _ in range(100):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).square().mean()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    lines = STEP_AND_TIME.findall((folder / "records.jsonl").read_text())
    with (folder / "records.jsonl").open("w") as file:
        for number in range(size):
            turn, place = divmod(number, len(lines))
            before, step, between, time_, after = lines[place]
            file.write(f"{before}{int(step) + 100 * turn}{between}{float(time_) + turn}{after}")
    manifest = json.loads((folder / "run.json").read_text())
    for attempt in manifest["attempts"]:
        attempt.pop("records", None)  # which says how many of its own there were
    (folder / "run.json").write_text(json.dumps(manifest))


def reading(part: str, read: Callable[[ls.Run], object]) -> Callable[[int, Path], Costs]:
    """What is done with a run that was never opened before."""

    def cost(size: int, folder: Path) -> Costs:  # noqa: ARG001  (the run has that many)
        costs: Costs = {}
        with timed(costs, part):
            read(ls.open_run(folder))
        return costs

    return cost


def examples(size: int, folder: Path) -> Costs:
    """So many examples, each presented twice in random order; and beside it, what only finding their places takes."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    logits, places, costs = torch.randn(4096, 4), np.zeros((size, 8)), Costs()
    w = ls.watch(model, optimizer, run=folder, probes=[ls.ExampleLedger()], strict=True)
    for _ in range(2):
        for ids in torch.randperm(size).split(4096):
            model(logits[:1]).sum().backward()
            optimizer.step()
            with timed(costs, "following"):
                w.examples(ids, logits[: len(ids)], ids % 4)
            with timed(costs, "limit"):
                places[ids.numpy()] += 1.0
        with timed(costs, "following"):
            w.end_epoch()
    with timed(costs, "following"):
        w.close()
    with timed(costs, "table"):
        assert len(ls.open_run(folder).examples()) == size
    return costs


@dataclass(frozen=True)
class Subject:
    over: str
    largest: int
    cost: Callable[[int, Path], Costs]
    seconds: float
    """What all runs may take."""
    prepare: Callable[[Path, int], None] | None = None
    """Fills the folder of a size, of which each run gets a copy; without it, an empty one."""

    def measure(self, runs: int, patience: float) -> tuple[list[int], dict[str, list[list[float]]]]:
        """The sizes, and for each part a list of costs at these sizes for each run."""
        with tempfile.TemporaryDirectory() as folder:
            sizes = self._sizes(self.largest)
            self._once(sizes[0], Path(folder))  # imports and compiles
            if runs > 1:
                small, middle = (self._seconds(size, Path(folder)) for size in sizes[:2])
                most = affordable(sizes, small, middle, patience * self.seconds / runs)
                sizes = self._sizes(min(self.largest, rounded(most)))
            parts: dict[str, list[list[float]]] = {}
            for _ in range(runs):
                taken = [self._once(size, Path(folder)) for size in sizes]
                for part in taken[0]:
                    parts.setdefault(part, []).append([each[part] for each in taken])
        return sizes, parts

    def _seconds(self, size: int, place: Path) -> float:
        start = time.process_time()
        self._once(size, place)
        return time.process_time() - start

    def _sizes(self, largest: int) -> list[int]:
        return [largest // 9, largest // 3, largest]

    def _once(self, size: int, place: Path) -> Costs:
        folder, prepared = place / "run", place / f"{self.over}-{size}"
        if self.prepare is not None:
            if not prepared.exists():
                self.prepare(prepared, size)
            shutil.copytree(prepared, folder)
        try:
            return self.cost(size, folder)
        finally:
            shutil.rmtree(folder)


def affordable(sizes: Sequence[int], small: float, middle: float, seconds: float) -> float:
    """The largest size of which a run (with a third and a ninth of it) takes so long, by a line through two sizes."""
    each = max((middle - small) / (sizes[1] - sizes[0]), 1e-9)
    fixed = max(small - each * sizes[0], 0.0)
    return max((seconds - 3 * fixed) / (each * 13 / 9), sizes[0])


def rounded(size: float) -> int:
    """Downwards, to one digit that is not zero."""
    unit = 10 ** max(0, int(np.log10(max(size, 1))))
    return max(9, int(size // unit * unit))


SUBJECTS = {
    "steps": Subject("steps", 4_500, steps, 35),
    "tensors": Subject("tensors", 5_000, tensors, 40),
    "parameters": Subject("parameters", 100_000_000, parameters, 35),
    "examples": Subject("examples", 1_000_000, examples, 40),
    "table": Subject("records", 1_000_000, reading("table", ls.Run.frame), 45, write_run),
    "findings": Subject("records", 1_000_000, reading("findings", ls.Run.findings), 70, write_run),
    "report": Subject("records", 1_000_000, reading("report", ls.Run.report), 45, write_run),
}
QUICK = {"steps": 90, "tensors": 90, "parameters": 9 * 2**20, "records": 900, "examples": 9_000}
"""Largest sizes, only to see that it runs."""


def fit(sizes: Sequence[int], costs: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept of the cost over the size, both as logarithms."""
    slope, intercept = np.polyfit(np.log(sizes), np.log(np.maximum(costs, 1e-9)), 1)
    return float(slope), float(intercept)


def claims_of(subject: Subject, runs: int, patience: float) -> list[Claim]:
    sizes, parts = subject.measure(runs, patience)
    limit = [fit(sizes, costs)[0] for costs in parts.pop("limit", [])]
    made = []
    for part, costs in parts.items():
        slopes = [fit(sizes, each)[0] for each in costs]
        least = float(np.median(limit)) if limit and part == "following" else None
        name = f"exponent of {part} over {subject.over}, to {sizes[-1]:,}"
        at_most = f"{np.median([each[-1] for each in costs]):.3g} s at the largest size"
        note = at_most if least is None else f"{at_most}; limit: adding to the examples' places in an array"
        made.append(Claim(name, slopes, bound=BOUND, limit=least, unit="exponent", note=note))
        if subject.over == "parameters":
            far = [float(np.exp(fit(sizes, each)[1]) * 1e9 ** fit(sizes, each)[0]) for each in costs]
            made.append(Claim(f"{part}, 10⁹ parameters, extrapolated", far, unit="s", note="not measured"))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how cost grows")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--patience", type=float, default=1.0, help="times as long as a subject may take by default")
    parser.add_argument("--only", nargs="*", choices=list(SUBJECTS), default=list(SUBJECTS), help="keeps nothing")
    parser.add_argument("--records", type=int, default=SUBJECTS["table"].largest)
    parser.add_argument("--examples", type=int, default=SUBJECTS["examples"].largest)
    options = parser.parse_args()
    torch.set_num_threads(1)
    claims: list[Claim] = []
    for name in options.only:
        subject = SUBJECTS[name]
        largest = QUICK[subject.over] if options.quick else getattr(options, subject.over, subject.largest)
        subject = dataclasses.replace(subject, largest=largest)
        claims += claims_of(subject, 1 if options.quick else options.runs, options.patience)
    held = show(claims)
    if options.quick or len(options.only) < len(SUBJECTS):
        return 0
    keep("growth", claims)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
