"""What the spectra of adapters cost beside the QR of their factors, and beside decomposing the product.

    python bench/spectrum.py [--quick]

Sixteen modules of 1024 × 1024 with float32 adapters of rank 16. Times are medians of repetitions that take turns, in
processor time of one thread, which waiting for other programs does not count. The product is decomposed for one module
and counted sixteen times, as modules have nothing in common. Exits with 1 if a stated bound is missed.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from tools.figures import interleaved, report, save
from torch import Tensor

from learnscope.tensor.spectrum import Factors, decompose_factors, spectrum_numbers

BOUNDS = {
    "spectra / QR core": 2.0,
    "spectra / SVD of the product": 1 / 500,
    "largest relative error": 1e-9,
}


def core_alone(left: Tensor, right: Tensor) -> Tensor:
    """The least that must be done, for all modules at once: float64, both factorisations, the small core's values."""
    core = torch.linalg.qr(left.double(), mode="r").R @ torch.linalg.qr(right.double().mT, mode="r").R.mT
    values: Tensor = torch.linalg.svdvals(core)
    return values


def measure(modules: int, size: int, rank: int, repeats: int) -> dict[str, float]:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast it is")
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(4, 128, 8, 3) if options.quick else measure(16, 1024, 16, options.repeats)
    held = report(figures, BOUNDS)
    if options.quick:
        return 0
    save("spectrum", figures, BOUNDS)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
