"""What an analysis of a GPT-2 costs: parameter change beside one read of both copies, sparse quality beside forwards.

    python bench/parameter_analysis.py [--quick] [--threads 2]

A measurement of the parameter change goes through `ModelAnalysisManager`, per layer and component, and includes the
new snapshot. It takes turns with `torch.dot` over two vectors as long as the model, which reads both copies once; and
so does the usual code of this field: a delta of every tensor, joined into one, and a statistic at a time. The sparse
quality takes turns with as many plain forwards of the same batch. Figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from tools.figures import in_fresh_process, interleaved, peak_beyond_now, report, save
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from learnscope.analysis import AnalysisConfig, ModelAnalysisManager

BOUNDS = {
    "parameter change / dot": 6.0,
    "beyond model and snapshot, MiB": 64.0,
    "three thresholds with a random baseline / 7 forwards": 1.2,
    "ns an entry, 124 M / 10 M": 1.25,  # not more than linear
    "ns an entry, 124 M / 1 M": 1.25,
}
SIZES = {
    "1 M": {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 1000},
    "10 M": {"n_layer": 5, "n_embd": 384, "n_head": 6, "vocab_size": 2000},
    "124 M": {},
}
QUICK = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 500}
THRESHOLDS = [1e-8, 1e-6, 1e-4]


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


def parameter_change(options: dict[str, int], repeats: int) -> tuple[dict[str, float], float]:
    """The ratios to a dot product, and nanoseconds an entry."""
    model = gpt2(**options)
    entries = sum(p.numel() for p in model.parameters())
    vectors = torch.randn(entries), torch.randn(entries)
    manager = change_manager()
    manager.on_optimizer_step(model)
    old = {name: p.detach().clone() for name, p in model.named_parameters()}
    train_a_little(model)
    start = time.perf_counter()
    manager.on_optimizer_step(model)
    figures = {"first measurement, compiling, s": time.perf_counter() - start}
    runs: dict[str, Callable[[], object]] = {
        "parameter change": lambda: manager.on_optimizer_step(model),
        "usual code": lambda: usual_code(model, old),
    }
    for name, run in runs.items():  # apart: a dot product beside gigabytes of fresh memory takes three times as long
        times = interleaved({"dot": lambda: torch.dot(*vectors), "run": run}, repeats)
        dot, each = (statistics.median(times[key]) for key in ("dot", "run"))
        figures |= {f"{name} / dot": each / dot, f"dot beside {name}, ms": dot * 1e3, f"{name}, ms": each * 1e3}
    return figures, figures["parameter change, ms"] / entries * 1e6


def measurement_memory(quick: bool) -> float:
    """Peak resident memory of a measurement beyond the model and the one snapshot."""
    model = gpt2(**(QUICK if quick else {}))
    manager = change_manager()
    manager.on_optimizer_step(model)
    manager.on_optimizer_step(model)  # compiles
    train_a_little(model)
    return peak_beyond_now(lambda: manager.on_optimizer_step(model))


def sparse_quality(quick: bool, repeats: int) -> dict[str, float]:
    model = gpt2(**(QUICK if quick else {}))
    tokens = torch.randint(500, (4, 128), generator=torch.Generator().manual_seed(2))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def forwards(count: int) -> None:
        model.eval()
        with torch.no_grad():
            for _ in range(count):
                model(**batch)
        model.train()

    def analysis(changed: bool) -> Callable[[], object]:
        config = AnalysisConfig(interval=1, param_change_enabled=False, sparse_quality_include_random_changed=changed)
        manager = ModelAnalysisManager.create(config, strict=True)
        manager.on_optimizer_step(model, inputs=batch)

        def measure() -> None:
            train_a_little(model)
            start = time.perf_counter()
            metrics = manager.on_optimizer_step(model, inputs=batch)
            spent.append(time.perf_counter() - start)
            assert metrics["sparse/kl_at_1e-04_random"] > metrics["sparse/kl_at_1e-06"] >= 0

        return measure

    figures = {}
    for name, changed, count in (("a random baseline", False, 7), ("both baselines", True, 10)):
        spent: list[float] = []
        times = interleaved({"forwards": lambda n=count: forwards(n), "analysis": analysis(changed)}, repeats)  # type: ignore[misc]
        plain = statistics.median(times["forwards"])
        figures[f"three thresholds with {name} / {count} forwards"] = statistics.median(spent[1:]) / plain
        figures[f"{count} forwards, s"] = plain
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one thread: does it run, not how fast it is")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads, repeats = (1, 1) if options.quick else (options.threads, options.repeats)
    torch.set_num_threads(threads)
    if options.memory:
        print(measurement_memory(options.quick))
        return 0
    figures: dict[str, float] = {}
    each: dict[str, float] = {}
    for name, size in SIZES.items():
        found, each[name] = parameter_change(QUICK if options.quick else size, repeats)
        figures |= found if name == "124 M" else {}
    figures |= {f"ns an entry, {name}": value for name, value in each.items()}
    figures |= {f"ns an entry, 124 M / {name}": each["124 M"] / each[name] for name in ("1 M", "10 M")}
    figures["beyond model and snapshot, MiB"] = in_fresh_process(__file__, "--threads", str(options.threads))
    figures |= sparse_quality(options.quick, max(1, repeats - 2))
    held = report(figures, BOUNDS)
    if options.quick:
        return 0
    save("parameter_analysis", figures, BOUNDS)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
