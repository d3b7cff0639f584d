"""What collecting telemetry costs, beside the reading and writing that it cannot do without.

    python bench/telemetry.py [--quick] [--runs 5] [--threads 2]

A model of 25 M parameters is collected after every batch: gradient norms, the weight delta against the file, learning
rates and batch statistics. That takes turns with the least that such a collection must do: reading the weights, the
gradients and the old file once, and writing the new file once (to a temporary name, renamed into place; neither waits
for the disk). A run is the ratio of medians of several turns, in a process that goes on; memory is the peak beyond what
a process of its own holds before a collection.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tools.claims import Claim, keep, show
from tools.figures import in_fresh_process, interleaved, peak_beyond_now
from torch import Tensor, nn

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry


def make_model(quick: bool) -> nn.Module:
    """A backbone of blocks and a head, 25.2 M parameters in 50 tensors."""
    torch.manual_seed(0)
    width = 64 if quick else 1024
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(24)]
    model = nn.Module()
    model.backbone = nn.Sequential(*blocks)
    model.head = nn.Linear(width, 10)
    model.forward = lambda x: model.head(model.backbone(x))  # type: ignore[method-assign]
    return model


def give_gradients(model: nn.Module) -> torch.optim.Optimizer:
    for p in model.parameters():
        p.grad = 1e-3 * torch.randn_like(p)
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def move(model: nn.Module) -> None:
    """As a step would, by something like 1e-5."""
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p.sub_(p.grad, alpha=1e-2)


def least(model: nn.Module, folder: Path) -> Callable[[], None]:
    """Reads weights, gradients and the old file once, and writes the new file once."""
    path, temporary = folder / "plain.bin", folder / "plain.tmp"
    parameters = [p.detach() for p in model.parameters()]

    def write() -> None:
        file = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for p in parameters:
            os.write(file, memoryview(p.numpy()).cast("B"))
        os.close(file)
        temporary.replace(path)

    def once() -> None:
        for p, parameter in zip(parameters, model.parameters(), strict=True):
            torch.linalg.vector_norm(p)
            assert parameter.grad is not None
            torch.linalg.vector_norm(parameter.grad)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            old = np.frombuffer(mapped, dtype=np.float32)
            torch.linalg.vector_norm(_readable(old))
            del old
        write()

    write()
    return once


def _readable(array: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    import warnings

    with warnings.catch_warnings():  # it is not written, and torch cannot know
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


@contextmanager
def opened(model: nn.Module, folder: Path) -> Iterator[Callable[[], None]]:
    """A function that collects once."""
    optimizer = give_gradients(model)
    batch = torch.randn(8, 4), torch.randint(10, (8,))
    batches = iter(range(1, 10**9))
    with TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=folder / "t"), strict=True) as telemetry:
        yield lambda: telemetry.on_batch_end(model, optimizer, next(batches), 0, "cpu", batch)


def cost(quick: bool, runs: int, repeats: int) -> list[float]:
    """Collections over the least that they must do, one ratio a run."""
    model = make_model(quick)
    ratios = []
    with tempfile.TemporaryDirectory() as name, opened(model, Path(name)) as collect:
        plain = least(model, Path(name))
        for _ in range(runs):
            spent: list[float] = []

            def moved_and_collected(spent: list[float] = spent) -> None:
                move(model)
                start = time.perf_counter()
                collect()
                spent.append(time.perf_counter() - start)

            times = interleaved({"plain": plain, "collected": moved_and_collected}, repeats)
            ratios.append(statistics.median(spent[1:]) / statistics.median(times["plain"]))
    return ratios


def memory(quick: bool) -> float:
    model = make_model(quick)
    with tempfile.TemporaryDirectory() as name, opened(model, Path(name)) as collect:
        collect()
        collect()
        move(model)
        return peak_beyond_now(collect)


def writes_of_a_line(rows: int) -> int:
    """How often the line file is written for one collection with so many holdout rows."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(1000, 4), torch.randint(2, (1000,))) for _ in range(rows // 1000)]
    genuine, counted = os.write, 0

    def counting(file: int, content: bytes) -> int:
        nonlocal counted
        counted += os.readlink(f"/proc/self/fd/{file}").endswith("telemetry.jsonl")
        return genuine(file, content)

    with tempfile.TemporaryDirectory() as folder:
        config = TelemetryConfig(collect_every_n=1, output_dir=Path(folder), holdout_size=rows)
        with TrainingTelemetry(config, strict=True) as telemetry:
            telemetry.set_holdout_data(data)
            os.write = counting
            try:
                telemetry.on_batch_end(model, optimizer, 1, 0)
            finally:
                os.write = genuine
            assert len(telemetry.to_dataframe(logits=True)["holdout_logits.logits"][0]) == rows
    return counted


def claims(quick: bool, runs: int, threads: int) -> list[Claim]:
    repeats, rows = (2, 1_000) if quick else (7, 10_000)
    peaks = [in_fresh_process(__file__) for _ in range(runs)]
    writes = [float(writes_of_a_line(rows)) for _ in range(runs)]
    return [
        Claim("collection / reading and writing once", cost(quick, runs, repeats), bound=1.3, threads=threads),
        Claim("memory of a collection beyond the model", peaks, bound=64.0, unit="MiB", threads=threads),
        Claim(f"writes of a line with {rows:,} holdout rows", writes, bound=1.0, limit=1.0, unit="writes"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a small model, one thread: does it run, not how fast it is"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads, runs = (1, 1) if options.quick else (options.threads, options.runs)
    torch.set_num_threads(threads)
    if options.memory:
        print(memory(options.quick))
        return 0
    found = claims(options.quick, runs, threads)
    held = show(found)
    if options.quick:
        return 0
    keep("telemetry", found)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
