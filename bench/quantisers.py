"""What the quantisers take: time per million weights, beside another project's GPTQ.

    python bench/quantisers.py [--quick] [--runs 5]

A layer of 1024 × 1024 float32 weights at 4 bits, a scale for each row, with the second moments of 4096 correlated
inputs. Processor time of one thread, the quantisers taking turns. The peer is the GPTQ of Intel's neural-compressor on
the same moments, where it is installed (`pip install neural_compressor_pt`). Exits with 1 if a stated bound is missed.
"""

import argparse
import importlib
import importlib.metadata
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from tools.claims import Claim, keep, show
from tools.figures import interleaved
from torch import Tensor, nn

from learnscope.tensor.bits.gptq import quantize_gptq
from learnscope.tensor.bits.methods import METHODS, quantize_by
from learnscope.tensor.bits.quantize import Scheme
from learnscope.tensor.bits.statistics import InputStatistics

BITS = 4
NOTE = "ours factorises in float64 and holds every row against round-to-nearest, which the peer does not"


def layer(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(size, size, generator=generator) / size**0.5
    return torch.randn(size, size, generator=generator), torch.randn(4 * size, size, generator=generator) @ mixing


def peer(weight: Tensor, inputs: Tensor) -> tuple[str, Callable[[], object]] | None:
    """Its name with its version, and the same work: asymmetric, by rows, columns with the largest inputs first."""
    try:
        GPTQ: Any = importlib.import_module("neural_compressor.torch.algorithms.weight_only.gptq").GPTQ
    except ImportError:
        return None
    logging.getLogger("neural_compressor").setLevel(logging.ERROR)
    watched: Any = GPTQ(nn.Linear(weight.shape[1], len(weight)), weight)
    watched.add_batch(inputs, None)
    moments = watched.H.clone()
    asked = {"dtype": "int", "bits": BITS, "sym": False, "perchannel": True, "mse": False, "double_quant_sym": False}

    def run() -> object:
        theirs: Any = GPTQ(watched.layer, weight)
        theirs.H, theirs.nsamples = moments.clone(), 1
        theirs.quantizer.configure(asked | {"use_double_quant": False, "group_size": -1})
        return theirs.fasterquant(weight.clone(), act_order=True)

    return f"neural_compressor_pt {importlib.metadata.version('neural_compressor_pt')}", run


def measured(size: int, runs: int) -> list[Claim]:
    weight, inputs = layer(size)
    statistics, millions = InputStatistics.of(inputs), size * size / 1e6
    names = [name for name, method in METHODS.items() if method.package is None]
    work: dict[str, Callable[[], object]] = {
        name: (lambda name=name: quantize_by(name, weight, BITS, inputs=statistics))  # type: ignore[misc]
        for name in names
    }
    work["same"] = lambda: quantize_gptq(weight, BITS, Scheme(symmetric=False), statistics)
    work["moments"] = lambda: InputStatistics.of(inputs)
    other = peer(weight, inputs)
    if other is not None:
        work["peer"] = other[1]
    times = {
        name: [1e3 * t / millions for t in found] for name, found in interleaved(work, runs, time.thread_time).items()
    }
    claims = [Claim(f"{name} at {BITS} bits, per million weights", times[name], unit="ms") for name in names]
    claims.append(Claim(f"second moments of {len(inputs)} inputs, per million entries", times["moments"], unit="ms"))
    if other is not None:
        ratios = [ours / theirs for ours, theirs in zip(times["same"], times["peer"], strict=True)]
        claims.append(
            Claim(
                f"gptq of {size}² weights / the peer's",
                ratios,
                bound=1.0,
                note=NOTE,
                peer=f"{other[0]}, ms",
                peer_runs=times["peer"],
            )
        )
    return claims


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one run: does it run, not how fast it is")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    claims = measured(64, 1) if options.quick else measured(1024, options.runs)
    held = show(claims)
    if options.quick:
        return 0
    absent = {} if any(claim.peer for claim in claims) else {"neural_compressor_pt": "it is not installed"}
    keep("quantisers", claims, absent=absent)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
