"""What the statistics of changes cost beside `torch.dot` over the same buffers, and how right they are.

    python bench/delta.py [--quick] [--runs 5] [--threads 1]

Every run is a ratio of medians of calls that alternate with the dot product, in processor time at one thread, which
waiting for other programs does not count; with more threads, in elapsed time. Exits with 1 if a bound is missed.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from tools.claims import Claim, keep, show
from tools.figures import interleaved, peak_beyond_now
from torch import Tensor

from learnscope.tensor.gradients.gradient import gradient_statistics
from learnscope.tensor.updates.delta import DeltaTable, compiler_available, delta_statistics

THRESHOLDS = [1e-8, 1e-6, 1e-4]
ERROR = 1e-6
"""The largest relative error of a norm."""
MEMORY = 64.0
"""MiB beyond the two copies."""


def buffers(entries: int, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(entries, generator=generator).mul_(scale)
    new = torch.randn(entries, generator=generator).mul_(1e-5 * scale).add_(old)
    return new, old


def gpt2_shapes(quick: bool) -> list[torch.Size]:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2Config(n_layer=2, vocab_size=2000, bos_token_id=0, eos_token_id=0)
    build: Callable[[object], torch.nn.Module] = GPT2LMHeadModel  # its constructor carries no types
    with torch.device("meta"):
        model = build(small if quick else GPT2Config())
    return [parameter.shape for parameter in model.parameters()]  # a tied head is listed once


def ratios(runs: int, repeats: int, work: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """For each run, how many dot products a call takes, by name; `work` has a `dot`."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in work if name != "dot"}
    for _ in range(runs):
        times = interleaved(work, repeats, clock)
        for name, values in found.items():
            values.append(statistics.median(times[name]) / statistics.median(times["dot"]))
    return found


def one_tensor(entries: int, runs: int, repeats: int, threads: int) -> list[Claim]:
    new, old = buffers(entries)
    work: dict[str, Callable[[], object]] = {
        "dot": lambda: torch.dot(new, old),
        "fused": lambda: delta_statistics([new], [old], THRESHOLDS),
        "compiled": lambda: delta_statistics([new], [old], THRESHOLDS, form="compiled"),
        "chunked": lambda: delta_statistics([new], [old], THRESHOLDS, form="chunked"),
    }
    found = ratios(runs, repeats, work)
    size = f"{entries // 1_000_000} M entries"
    return [
        Claim(f"fused delta / dot, {size}", found["fused"], bound=1.6, limit=1.0, threads=threads),
        Claim(f"delta by torch's compiler / dot, {size}", found["compiled"], limit=1.0, threads=threads),
        Claim(f"delta without a compiler / dot, {size}", found["chunked"], bound=12.0, limit=1.0, threads=threads),
    ]


def gpt2(quick: bool, runs: int, repeats: int, threads: int) -> list[Claim]:
    shapes = gpt2_shapes(quick)
    lengths = [shape.numel() for shape in shapes]
    flat_new, flat_old = buffers(sum(lengths))
    new, old = (
        [part.view(shape) for part, shape in zip(torch.split_with_sizes(flat, lengths), shapes, strict=True)]
        for flat in (flat_new, flat_old)
    )
    work: dict[str, Callable[[], object]] = {
        "dot": lambda: torch.dot(flat_new, flat_old),
        "fused": lambda: delta_statistics(new, old, THRESHOLDS),
        "gradients": lambda: gradient_statistics(new),
    }
    found = ratios(runs, repeats, work)
    return [
        Claim("fused delta / dot, tensors of GPT-2", found["fused"], bound=2.0, limit=1.0, threads=threads),
        Claim("statistics of gradients / dot, tensors of GPT-2", found["gradients"], limit=0.5, threads=threads),
    ]


def exact_norms(new: Tensor, old: Tensor) -> dict[str, float]:
    """The same norms in float64, a piece at a time."""
    sums = {"l1": 0.0, "sum_squares": 0.0, "old_sum_squares": 0.0}
    for a, b in zip(new.split(1 << 22), old.split(1 << 22), strict=True):
        change = (a - b).double()
        sums["l1"] += float(change.abs().sum())
        sums["sum_squares"] += float(change.square().sum())
        sums["old_sum_squares"] += float(b.double().square().sum())
    return sums


def relative_errors(table: DeltaTable, truth: dict[str, float]) -> list[float]:
    errors = []
    for name, exact in truth.items():
        got, power = float(getattr(table, name)[0]), 1.0 if name == "l1" else 0.5
        errors.append(abs(got**power - exact**power) / exact**power)
    return errors


def accuracy(entries: int, seed: int) -> float:
    """The largest error over tiny and huge entries, many, and all alike; all forms."""
    cases = [buffers(entries // 8, scale, seed) for scale in (1e-38, 1e-25, 1e-12, 1e30)]
    cases += [buffers(entries, seed=seed), (torch.full((entries // 8,), 0.7 + seed), torch.full((entries // 8,), 0.1))]
    errors: list[float] = []
    for new, old in cases:
        truth = exact_norms(new, old)
        for form in ("auto", "compiled", "chunked"):
            errors += relative_errors(delta_statistics([new], [old], THRESHOLDS, form=form), truth)  # type: ignore[arg-type]
    return max(errors)


def measure_memory(form: str, entries: int) -> float:
    """Peak resident memory of one call beyond what the process holds before it, in MiB."""
    new, old = buffers(entries)
    delta_statistics([new[: 1 << 22]], [old[: 1 << 22]], THRESHOLDS, form=form)  # type: ignore[arg-type]
    return peak_beyond_now(lambda: delta_statistics([new], [old], THRESHOLDS, form=form))  # type: ignore[arg-type]


def memory(entries: int, threads: int, runs: int) -> list[float]:
    """Of runs in processes of their own."""
    command = [sys.executable, __file__, "--memory", "auto", "--entries", str(entries), "--threads", str(threads)]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(runs)]
    return [float(output.split()[-1]) for output in outputs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one run: does it run, not how fast it is")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--entries", type=int)
    parser.add_argument("--memory", choices=["auto", "compiled", "chunked"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    entries = options.entries or (1_000_000 if options.quick else 100_000_000)
    if options.memory:
        print(measure_memory(options.memory, entries))
        return 0
    if not compiler_available():
        raise SystemExit("torch.compile does not work here: nothing to compare")
    runs, repeats = (1, 1) if options.quick else (options.runs, 5)
    claims = one_tensor(entries, runs, repeats, options.threads)
    claims += gpt2(options.quick, runs, repeats, options.threads)
    errors = [accuracy(entries // 4, seed) for seed in range(runs)]
    claims.append(Claim("statistics of changes, largest relative error of a norm", errors, bound=ERROR, unit=""))
    beyond = memory(entries, options.threads, runs)
    claims.append(Claim("fused delta, memory beyond the copies", beyond, bound=MEMORY, unit="MiB"))
    held = show(claims)
    if options.quick:
        return 0
    keep("delta", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
