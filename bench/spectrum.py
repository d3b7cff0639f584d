"""What the spectra of adapters cost beside the QR of their factors, and beside decomposing the product.

    python bench/spectrum.py [--quick]

Sixteen modules of 1024 × 1024 with float32 adapters of rank 16. Times are medians of repetitions that take turns, in
processor time of one thread, which waiting for other programs does not count. The product is decomposed for one module
and counted sixteen times, as modules have nothing in common.

And what tracking costs: the built-in training of `learnscope train` (28 modules at r = 8) with both trackers every 10
steps; the processor time within the session's own calls (hooks of every step, measurements, records) beside all other,
from the first step to the last of the same run. Runs with and without in turns differ by more than that for other
reasons; their ratio is told as well. Without what is no tracking: making the model, checkpoints, figures, and the
ranks that are tried once at the end, whose time is told.
Exits with 1 if a stated bound is missed.
"""

import argparse
import ctypes
import functools
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from tools.figures import interleaved, report, save
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

import learnscope as ls
from learnscope.session.steps.ends import StepEnds
from learnscope.tensor.adapters.spectrum import Factors, decompose_factors, spectrum_numbers
from learnscope.training import builtin
from learnscope.training.command import train
from learnscope.training.screen import Screen
from learnscope.training.settings.parser import parse

BOUNDS = {
    "spectra / QR core": 2.0,
    "spectra / SVD of the product": 1 / 500,
    "largest relative error": 1e-9,
    "training with tracking / without": 1.02,
}
TRACKED = ("--enable_tracking", "--tracking_frequency", "10")


def core_alone(left: Tensor, right: Tensor) -> Tensor:
    """The least that must be done, for all modules at once: float64, both factorisations, the small core's values."""
    core = torch.linalg.qr(left.double(), mode="r").R @ torch.linalg.qr(right.double().mT, mode="r").R.mT
    values: Tensor = torch.linalg.svdvals(core)
    return values


def keep_memory() -> None:
    """Let glibc keep freed memory: to fetch it anew costs either side by chance up to as much as the work itself."""
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            allocator.mallopt(option, 1 << 30)


def measure(modules: int, size: int, rank: int, repeats: int) -> dict[str, float]:
    keep_memory()
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(modules, size, rank, generator=generator)
    right = torch.randn(modules, rank, size, generator=generator)
    updates = [Factors(b, a, 2.0) for b, a in zip(left, right, strict=True)]
    runs: dict[str, Callable[[], object]] = {
        "core": lambda: core_alone(left, right),
        "spectra": lambda: spectrum_numbers([one.values for one in decompose_factors(updates)]),
        "vectors": lambda: decompose_factors(updates, vectors=True),
    }
    times = interleaved(runs, repeats, time.thread_time)
    medians = {name: statistics.median(values) for name, values in times.items()}
    times = interleaved({"product": lambda: torch.linalg.svdvals(2.0 * (left[0] @ right[0]))}, 3, time.thread_time)
    product = statistics.median(times["product"])
    truth = torch.linalg.svdvals(2.0 * (left[0].double() @ right[0].double()))[:rank]
    found = decompose_factors(updates[:1])[0].values
    return {
        "spectra / QR core": medians["spectra"] / medians["core"],
        "with vectors / QR core": medians["vectors"] / medians["core"],
        "spectra / SVD of the product": medians["spectra"] / (modules * product),
        "largest relative error": float(((found - truth).abs() / truth).max()),
        "spectra, ms": medians["spectra"] * 1e3,
        "QR core, ms": medians["core"] * 1e3,
        "SVD of one product, ms": product * 1e3,
    }


TRACKING = (
    (StepEnds, StepEnds._on_start), (StepEnds, StepEnds._on_end), (StepEnds, StepEnds._on_clip),
    (ls.Watch, ls.Watch.log),
)  # fmt: skip
"""Where tracking spends its time; a name that is gone fails when this file is imported."""


def trained(base: Path, folder: Path, steps: int, *flags: str) -> tuple[float, float]:
    """Processor seconds from the end of the first step to that of the last, and those of them that tracking took."""
    marks: list[tuple[float, float]] = []
    inside = [0.0]
    config = parse([
        "--config.model.model_name_or_path", str(base), "--config.model.attn_implementation", "sdpa",
        "--config.training.output_dir", str(folder), "--config.training.max_steps", str(steps),
        "--config.training.save_steps", "0", *flags,
    ])  # fmt: skip

    def mark(*_: Any) -> None:
        marks.append((time.thread_time(), inside[0]))

    hook: Any = register_optimizer_step_post_hook(mark)
    with ExitStack() as stack:
        stack.callback(hook.remove)
        for owner, method in TRACKING:
            stack.enter_context(mock.patch.object(owner, method.__name__, timed(method, inside)))
        train(config, Screen(Console(file=io.StringIO())))
    return marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]


def timed(method: Callable[..., Any], inside: list[float]) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            inside[0] += time.thread_time() - start

    return counted


def tracking(steps: int, repeats: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builtin.make_base_model(folder / "base")
        seconds: dict[str, list[tuple[float, float]]] = {"untracked": [], "tracked": []}
        for turn in range(repeats):
            for kind in ("untracked", "tracked") if turn % 2 else ("tracked", "untracked"):
                flags = TRACKED if kind == "tracked" else ()
                seconds[kind].append(trained(folder / "base", folder / f"{kind}-{turn}", steps, *flags))
        closing = ls.open_run(folder / "tracked-0" / "run").frame("AdapterTruncation")["cost"].iloc[0]
    own = statistics.median(inside for _, inside in seconds["tracked"])
    ratios = [total / (total - inside) for total, inside in seconds["tracked"]]
    turns = [a / b for (a, _), (b, _) in zip(seconds["tracked"], seconds["untracked"], strict=True)]
    return {
        "training with tracking / without": statistics.median(ratios),
        "runs in turns": statistics.median(turns),
        "untracked step, ms": statistics.median(total for total, _ in seconds["untracked"]) / (steps - 1) * 1e3,
        "tracking a measurement, ms": own / (steps // 10) * 1e3,
        "ranks tried at the end, ms": float(closing) * 1e3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast it is")
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(4, 128, 8, 3) if options.quick else measure(16, 1024, 16, options.repeats)
    builtin.STEPS = 3 if options.quick else builtin.STEPS
    figures |= tracking(20, 1) if options.quick else tracking(100, 5)
    held = report(figures, BOUNDS)
    if options.quick:
        return 0
    save("spectrum", figures, BOUNDS)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
