"""What an analysis of a GPT-2 costs: parameter change beside one read of both copies, sparse quality beside forwards.

    python bench/parameter_analysis.py [--quick] [--runs 5] [--threads 1]

A measurement of the parameter change goes through `ModelAnalysisManager`, per layer and component. It takes turns with
`torch.dot` over two vectors as long as the model, which reads both copies once, and with a plain copy of one of them;
its figures are with and without the time in which the snapshot is brought up to date. The usual code of this field (a
delta of every tensor, joined into one, and a statistic at a time) takes turns with the dot product too. The sparse
quality takes turns with plain forwards of the same batch; its figure is the number of forwards that it takes. Memory is
that of a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from tools.claims import Claim, keep, show
from tools.figures import interleaved, peak_beyond_now, printed_by
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from learnscope.analysis import AnalysisConfig, ModelAnalysisManager
from learnscope.model.weights.snapshot import Snapshot

SIZES = {
    "10 M": {"n_layer": 5, "n_embd": 384, "n_head": 6, "vocab_size": 2000},
    "124 M": {},
}
SPARSE = {"n_layer": 4, "vocab_size": 10_000}
"""36 M: as many operations for each parameter as the 124 M, in a quarter of the time."""
QUICK = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 500}
THRESHOLDS = [1e-8, 1e-6, 1e-4]
FORWARDS = 5
"""Plain ones that a run of the sparse quality is compared with."""


def gpt2(**options: int) -> torch.nn.Module:
    torch.manual_seed(0)
    build: Callable[[object], torch.nn.Module] = GPT2LMHeadModel  # its constructor carries no types
    return build(GPT2Config(**{"bos_token_id": 0, "eos_token_id": 0, **options}))


def train_a_little(model: torch.nn.Module) -> None:
    """Move the weights as training would: most by about 1e-5, some by much less."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += 1e-5 * torch.randn(p.shape, generator=generator) ** 3


def change_manager() -> ModelAnalysisManager:
    config = AnalysisConfig(
        interval=1, sparse_quality_enabled=False, param_change_per_layer=True, param_change_track_components=True
    )
    return ModelAnalysisManager.create(config, strict=True)


def usual_code(model: torch.nn.Module, old: dict[str, Tensor]) -> dict[str, float]:
    """As it is commonly written: float32 copies, one long delta, a pass and a wait for every number."""
    new = {name: p.detach().float().cpu().clone() for name, p in model.named_parameters()}
    deltas = {name: new[name] - old[name] for name in new}
    joined = torch.cat([delta.flatten() for delta in deltas.values()])
    found = {
        "l2": joined.norm(2).item(),
        "l1": joined.abs().sum().item(),
        "max": joined.abs().max().item(),
        "mean": joined.mean().item(),
        "std": joined.std().item(),
    }
    found |= {f"sparsity {t}": (joined.abs() <= t).float().mean().item() for t in THRESHOLDS}
    for name, delta in deltas.items():
        found[f"{name} mean"] = delta.abs().mean().item()
        found[f"{name} sparsity"] = (delta.abs() <= THRESHOLDS[0]).float().mean().item()
    return found


def parameter_change(options: dict[str, int], runs: int, repeats: int, *, usual: bool) -> dict[str, list[float]]:
    """Of each run the ratios to a dot product, and nanoseconds an entry."""
    model = gpt2(**options)
    entries = sum(p.numel() for p in model.parameters())
    vectors = torch.randn(entries), torch.randn(entries)
    manager, updating = change_manager(), list[float]()
    manager.on_optimizer_step(model)
    old = {name: p.detach().clone() for name, p in model.named_parameters()} if usual else {}
    train_a_little(model)
    found: dict[str, list[float]] = {"change": [], "statistics": [], "copy": [], "usual": [], "ns an entry": []}
    works: dict[str, Callable[[], object]] = {
        "dot": lambda: torch.dot(*vectors),
        "change": lambda: manager.on_optimizer_step(model),
        "copy": lambda: vectors[0].copy_(vectors[1]),
    }
    with mock.patch.object(Snapshot, "update", timed(Snapshot.update, updating)):
        manager.on_optimizer_step(model)  # compiles
        for _ in range(runs):
            updating.clear()
            times = interleaved(works, repeats, clock())
            dot, each, copy = (statistics.median(times[key]) for key in ("dot", "change", "copy"))
            found["change"].append(each / dot)
            found["statistics"].append((each - statistics.median(updating)) / dot)
            found["copy"].append(copy / dot)
            found["ns an entry"].append(each / entries * 1e9)
    if usual:  # apart: beside gigabytes of fresh memory a dot takes three times as long
        times = interleaved({"dot": works["dot"], "usual": lambda: usual_code(model, old)}, runs, clock())
        found["usual"] = [each / statistics.median(times["dot"]) for each in times["usual"]]
    return found


def timed(method: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The method, which adds the time of every call to the list."""

    @functools.wraps(method)
    def measured(*args: Any, **kwargs: Any) -> Any:
        start = clock()()
        try:
            return method(*args, **kwargs)
        finally:
            seconds.append(clock()() - start)

    return measured


def clock() -> Callable[[], float]:
    """Processor time at one thread: waiting for other programs is not counted."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def measurement_memory(quick: bool, runs: int) -> list[float]:
    """Peak resident memory of measurements beyond the model and the one snapshot."""
    model = gpt2(**(QUICK if quick else {}))
    manager = change_manager()
    manager.on_optimizer_step(model)
    manager.on_optimizer_step(model)  # compiles
    train_a_little(model)
    return [peak_beyond_now(lambda: manager.on_optimizer_step(model)) for _ in range(runs)]


def sparse_quality(quick: bool, runs: int) -> list[float]:
    """How many forwards of the batch a measurement takes that needs ten: both baselines at three thresholds."""
    model = gpt2(**(QUICK if quick else SPARSE))
    tokens = torch.randint(500, (4, 128), generator=torch.Generator().manual_seed(2))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    config = AnalysisConfig(interval=1, param_change_enabled=False, sparse_quality_include_random_changed=True)
    manager = ModelAnalysisManager.create(config, strict=True)
    manager.on_optimizer_step(model, inputs=batch)
    now, found = clock(), list[float]()
    for run in range(runs + 1):
        model.eval()
        start = now()
        with torch.no_grad():
            for _ in range(FORWARDS):
                model(**batch)
        forward = (now() - start) / FORWARDS
        model.train()
        train_a_little(model)
        start = now()
        metrics = manager.on_optimizer_step(model, inputs=batch)
        if run:  # the first one compiles
            found.append((now() - start) / forward)
        assert metrics["sparse/kl_at_1e-04_random"] > metrics["sparse/kl_at_1e-06"] >= 0
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one run: does it run, not how fast it is")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads, runs, repeats = options.threads, *((1, 1) if options.quick else (options.runs, 3))
    torch.set_num_threads(threads)
    if options.memory:
        print(json.dumps(measurement_memory(options.quick, runs)))
        return 0
    changes = {
        name: parameter_change(QUICK if options.quick else size, runs, repeats, usual=name == "124 M")
        for name, size in SIZES.items()
    }
    large, each = changes["124 M"], {name: found["ns an entry"] for name, found in changes.items()}
    linear = [a / b for a, b in zip(each["124 M"], each["10 M"], strict=True)]
    beyond = json.loads(printed_by(__file__))
    forwards = sparse_quality(options.quick, runs)
    reading = 1.0 + statistics.median(large["copy"])
    claims = [
        Claim(
            "parameter change / dot, 124 M, three thresholds, without the new snapshot", large["statistics"], bound=2.0,
            limit=1.0, threads=threads, peer="a delta of all tensors, a statistic at a time", peer_runs=large["usual"],
        ),
        Claim(
            "parameter change with its new snapshot / dot, 124 M, three thresholds", large["change"], limit=reading,
            threads=threads,
        ),
        Claim("parameter change, time an entry of 124 M / of 10 M", linear, bound=1.25, threads=threads),
        Claim("parameter change, memory beyond model and snapshot", beyond, bound=64.0, unit="MiB", threads=threads),
        Claim(
            "sparse quality, three thresholds and both baselines, 36 M", forwards, bound=10.5, limit=10.0,
            unit="forwards", threads=threads,
        ),
    ]  # fmt: skip
    held = show(claims)
    if options.quick:
        return 0
    keep("parameter_analysis", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
