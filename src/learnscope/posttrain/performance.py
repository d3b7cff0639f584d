"""The performance analyzer: how good, how fast and how large a finished model is."""

from __future__ import annotations

from typing import Any

from learnscope.posttrain.examined import Examined
from learnscope.posttrain.views import by_scope, entries, number
from learnscope.probes.cost.inference_speed import InferenceSpeed
from learnscope.probes.cost.layer_times import LayerTimes
from learnscope.probes.cost.memory_use import MemoryUse
from learnscope.probes.outputs.performance import Performance

_NO_CACHE = "not a causal language model of transformers with a cache"
_SPEED = {
    "tokens_per_second": "tokens_per_second", "batches_per_second": "batches_per_second",
    "examples_per_second": "examples_per_second", "mean_latency": "latency_mean", "p50_latency": "latency_p50",
    "p95_latency": "latency_p95", "p99_latency": "latency_p99", "n": "latency_n", "flops": "flops",
    "flops_per_second": "flops_per_second",
}  # fmt: skip


class PerformanceAnalyzer:
    """Loss and accuracy, latency and throughput, memory, and where the time goes, as dictionaries of plain numbers.

    A number that was not measured is NaN, and `reasons` says why, by its key. Seconds and bytes are the units. Every
    method takes the options of its probe: `Performance`, `InferenceSpeed`, `MemoryUse`, `LayerTimes`.
    """

    def __init__(self, examined: Examined) -> None:
        self.examined = examined

    def compute_basic_metrics(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """`loss`, `perplexity`, `accuracy` with `_low` and `_high`, `top_k_accuracy` by k, `examples`, `positions`."""
        record = self.examined.look(Performance(**options), data_loader)
        found: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for row in record.rows():
            if "k" in row.labels:
                k = str(row.labels["k"])
                found.setdefault(row.name, {})[k] = number(row, reasons, f"{row.name}[{k}]")
            else:
                found[row.name] = number(row, reasons)
        return {**found, "reasons": reasons}

    def benchmark_inference_speed(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """Throughput and latencies of the data's own batch; `prefill` and `decode` beside it; all settings as `sweep`.

        Percentiles of the latency are NaN where there are too few passes, `n`, for them.
        """
        record = self.examined.look(InferenceSpeed(**options), data_loader)
        sweep = [{"reasons": {}, **setting} for setting in entries(record, "model")["model"]]
        main = next(setting for setting in sweep if setting["main"])
        found: dict[str, Any] = {key: main[name] for key, name in _SPEED.items()}
        reasons = {key: main["reasons"][name] for key, name in _SPEED.items() if name in main["reasons"]}
        for phase in ("prefill", "decode"):
            found[phase] = next((setting for setting in sweep if setting["phase"] == phase), None)
            if found[phase] is None:
                reasons[phase] = _NO_CACHE
        return {**found, "sweep": sweep, **dict(record.notes), "reasons": reasons}

    def profile_memory(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """`parameters`, `model_bytes`, `peak_bytes`, `run_bytes`, `process`, and `parts` with the size of each."""
        record = self.examined.look(MemoryUse(**options), data_loader)
        found: dict[str, Any] = {"parts": by_scope(record, "part"), "reasons": {}}
        for row in record.rows():
            if row.kind == "model":
                found[row.name] = number(row, found["reasons"])
                found |= row.labels
        return {**found, **record.notes}

    def profile_layers(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """`total_seconds` of a pass, of `layers` and of `modules`, these with `self_seconds` and `calls` too."""
        record = self.examined.look(LayerTimes(**options), data_loader)
        layers = {scope: layer["total_seconds"] for scope, layer in by_scope(record, "layer").items()}
        whole = {"reasons": {}, **by_scope(record, "model")["model"]}
        return {"layers": layers, "modules": by_scope(record, "module"), **whole, **record.notes}

    def analyze(self, data_loader: Any, *, seconds: float = InferenceSpeed.seconds) -> dict[str, Any]:
        """All four, by `basic_metrics`, `speed`, `memory` and `layers`; each setting is timed for so many seconds."""
        with self.examined.together(data_loader):
            return {
                "basic_metrics": self.compute_basic_metrics(data_loader),
                "speed": self.benchmark_inference_speed(data_loader, seconds=seconds),
                "memory": self.profile_memory(data_loader),
                "layers": self.profile_layers(data_loader, seconds=4 * seconds),
            }
