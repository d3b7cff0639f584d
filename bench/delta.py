"""What the statistics of changes cost beside `torch.dot` over the same buffers, and how right they are.

    python bench/delta.py [--quick] [--threads 2]

Times are medians of repetitions that alternate with the dot product. Exits with 1 if a stated bound is missed.
On a machine that others use as well, threads wait for each other and the ratios grow without end; the rows
"one thread" are in processor time, which waiting does not count, and tell such a run from a real regression.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from tools.figures import interleaved, peak_beyond_now, report, save
from torch import Tensor

from learnscope.tensor.gradients.gradient import gradient_statistics
from learnscope.tensor.gradients.sketch import sketch
from learnscope.tensor.updates.delta import DeltaTable, compiler_available, delta_statistics

THRESHOLDS = [1e-4, 1e-3, 1e-2]
BOUNDS = {
    "compiled / dot, one tensor": 2.0,
    "chunked / dot, one tensor": 10.0,
    "compiled / dot, GPT-2": 3.0,
    "largest relative error of a norm": 1e-6,
    "extra memory compiled, MiB": 64.0,
    "extra memory chunked, MiB": 64.0,
    "gradients of a small model, ms": 1.0,
}


def ratio(times: dict[str, list[float]], name: str) -> float:
    return statistics.median(times[name]) / statistics.median(times["dot"])


def buffers(entries: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(entries, generator=generator).mul_(scale)
    new = torch.randn(entries, generator=generator).mul_(1e-3 * scale).add_(old)
    return new, old


def gpt2_shapes(quick: bool) -> list[torch.Size]:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2Config(n_layer=2, vocab_size=2000, bos_token_id=0, eos_token_id=0)
    build: Callable[[object], torch.nn.Module] = GPT2LMHeadModel  # its constructor carries no types
    with torch.device("meta"):
        model = build(small if quick else GPT2Config())
    return [parameter.shape for parameter in model.parameters()]  # a tied head is listed once


def time_one(entries: int, repeats: int) -> dict[str, float]:
    new, old = buffers(entries)
    runs: dict[str, Callable[[], object]] = {
        "dot": lambda: torch.dot(new, old),
        "compiled": lambda: delta_statistics([new], [old], THRESHOLDS, form="compiled"),
        "chunked": lambda: delta_statistics([new], [old], THRESHOLDS, form="chunked"),
    }
    times = interleaved(runs, repeats)
    result = {f"{form} / dot, one tensor": ratio(times, form) for form in ("compiled", "chunked")}
    result["dot, ms"] = statistics.median(times["dot"]) * 1e3
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = interleaved(runs, max(3, repeats // 2), time.thread_time)
    torch.set_num_threads(threads)
    return result | {f"{form} / dot, one thread": ratio(times, form) for form in ("compiled", "chunked")}


def time_gpt2(quick: bool, repeats: int) -> dict[str, float]:
    shapes = gpt2_shapes(quick)
    lengths = [shape.numel() for shape in shapes]
    flat_new, flat_old = buffers(sum(lengths))
    new, old = (
        [part.view(shape) for part, shape in zip(torch.split_with_sizes(flat, lengths), shapes, strict=True)]
        for flat in (flat_new, flat_old)
    )
    runs: dict[str, Callable[[], object]] = {
        "dot": lambda: torch.dot(flat_new, flat_old),
        "compiled": lambda: delta_statistics(new, old, THRESHOLDS, form="compiled"),
        "chunked": lambda: delta_statistics(new, old, THRESHOLDS, form="chunked"),
        "gradients": lambda: gradient_statistics(new, form="compiled"),
        "sketch": lambda: [sketch(tensor) for tensor in new],
    }
    times = interleaved(runs, repeats)
    result = {f"{name} / dot, GPT-2": ratio(times, name) for name in runs if name != "dot"}
    return result | {"GPT-2 tensors": len(shapes), "GPT-2 entries": sum(lengths)}


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


def accuracy(entries: int) -> dict[str, float]:
    cases = {f"entries near {scale:g}": buffers(entries // 8, scale) for scale in (1e-38, 1e-25, 1e-12, 1e30)}
    cases["many entries"] = buffers(entries)
    cases["equal steps"] = torch.full((entries // 8,), 0.7), torch.full((entries // 8,), 0.1)
    worst = {}
    for name, (new, old) in cases.items():
        truth = exact_norms(new, old)
        tables = [delta_statistics([new], [old], THRESHOLDS, form=form) for form in ("compiled", "chunked")]
        worst[f"error, {name}"] = max(error for table in tables for error in relative_errors(table, truth))
    return worst | {"largest relative error of a norm": max(worst.values())}


def measure_memory(form: str, entries: int) -> float:
    """Peak resident memory of one call beyond what the process holds before it, in MiB."""
    new, old = buffers(entries)
    delta_statistics([new[: 1 << 22]], [old[: 1 << 22]], THRESHOLDS, form=form)  # type: ignore[arg-type]
    return peak_beyond_now(lambda: delta_statistics([new], [old], THRESHOLDS, form=form))  # type: ignore[arg-type]


def memory(entries: int, threads: int) -> dict[str, float]:
    result = {}
    for form in ("compiled", "chunked"):
        command = [sys.executable, __file__, "--memory", form, "--entries", str(entries), "--threads", str(threads)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result[f"extra memory {form}, MiB"] = float(output.split()[-1])
    return result


def small_model(threads: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(s, generator=generator) for s in [(192, 128), (192,), (256, 192), (256,)] * 7]
    torch.set_num_threads(1)
    times = interleaved({"gradients": lambda: gradient_statistics(grads)}, 200, time.thread_time)
    torch.set_num_threads(threads)
    return {"gradients of a small model, ms": statistics.median(times["gradients"]) * 1e3}


def compile_time() -> dict[str, float]:
    start = time.perf_counter()
    if not compiler_available():
        raise SystemExit("torch.compile does not work here: nothing to compare")
    new, old = buffers(1 << 16)
    delta_statistics([new], [old], THRESHOLDS, form="compiled")
    return {"first compiled call, s": time.perf_counter() - start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one thread: does it run, not how fast it is")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--entries", type=int)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--memory", choices=["compiled", "chunked"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads, repeats = (1, 1) if options.quick else (options.threads, options.repeats)
    torch.set_num_threads(threads)
    entries = options.entries or (1_000_000 if options.quick else 100_000_000)
    if options.memory:
        print(measure_memory(options.memory, entries))
        return 0
    figures: dict[str, float] = compile_time()
    figures |= small_model(threads)
    figures |= time_one(entries, repeats)
    figures |= time_gpt2(options.quick, repeats)
    figures |= memory(entries, threads)
    figures |= accuracy(entries)
    held = report(figures, BOUNDS)
    if options.quick:
        return 0
    save("delta", figures, BOUNDS, entries=entries)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
