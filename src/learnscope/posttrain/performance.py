"""The performance analyzer: how good, how fast and how large a finished model is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from learnscope.model.outputs.questions import Questions
from learnscope.posttrain.encoders import NOTE, EncoderTask
from learnscope.posttrain.session import AuditSession, by_scope, entries, values_of
from learnscope.probes.cost.inference_speed import InferenceSpeed
from learnscope.probes.cost.layer_times import LayerTimes
from learnscope.probes.cost.memory_use import MemoryUse
from learnscope.probes.outputs.performance import Performance
from learnscope.probes.outputs.task_accuracy import TaskAccuracy
from learnscope.reading.audit_numbers import entries_of

_NO_CACHE = "not a causal language model of transformers with a cache"
_SPEED = {
    "tokens_per_second": "tokens_per_second", "batches_per_second": "batches_per_second",
    "examples_per_second": "examples_per_second", "mean_latency": "latency_mean", "p50_latency": "latency_p50",
    "p95_latency": "latency_p95", "p99_latency": "latency_p99", "n": "latency_n", "flops": "flops",
    "flops_per_second": "flops_per_second",
}  # fmt: skip


class PerformanceAnalyzer:
    """Loss and accuracy, latency and throughput, memory, and where the time goes, as dictionaries of plain numbers.

    A number that was not measured is NaN, and `reasons` says why, by its key. Units are seconds and bytes. Every
    method takes the options of its probe: `Performance`, `TaskAccuracy`, `InferenceSpeed`, `MemoryUse`, `LayerTimes`.
    """

    def __init__(self, session: AuditSession) -> None:
        self.session = session

    def compute_basic_metrics(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """`loss`, `perplexity`, `accuracy` with `_low` and `_high`, `top_k_accuracy` by k, `examples`, `positions`,
        and of a classifier `class_accuracy` by class.

        `data` is "the model's own samples" where there are no other data: the loss is then the model's entropy.
        """
        metrics: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        record = self.session.measure(Performance(**options), data_loader)
        for entry in entries_of([record]):
            if entry.kind == "class":
                metrics.setdefault("class_accuracy", {})[entry.scope] = values_of(entry)
                continue
            if "k" not in entry.labels:
                metrics |= values_of(entry)
                reasons |= entry.reasons
                continue
            k = str(entry.labels["k"])
            for name, value in values_of(entry).items():
                metrics.setdefault(name, {})[k] = value
            reasons |= {f"{name}[{k}]": reason for name, reason in entry.reasons.items()}
        return {**metrics, **record.notes, "reasons": reasons}

    def answer_tasks(self, data_loader: Any, tasks: Sequence[Questions], **options: Any) -> dict[str, dict[str, Any]]:
        """By task: `acc`, `acc_norm`, `acc_bytes` or `exact_match` with `_low` and `_high`, `chance`, `questions`."""
        record = self.session.measure(TaskAccuracy(tasks=list(tasks), **options), data_loader)
        return {scope: {"reasons": {}, **numbers} for scope, numbers in by_scope(record, "task").items()}

    def benchmark_inference_speed(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """Throughput and latencies of the data's own batch; all settings as `sweep`.

        `prefill` and `decode` are those of one example, of the longest text that was tried.

        Percentiles of the latency are NaN where there are too few passes, `n`, for them.
        """
        record = self.session.measure(InferenceSpeed(**options), data_loader)
        sweep = [{"reasons": {}, **setting} for setting in entries(record, "model")["model"]]
        main = next(setting for setting in sweep if setting["main"])
        speed: dict[str, Any] = {key: main[name] for key, name in _SPEED.items()}
        reasons = {key: main["reasons"][name] for key, name in _SPEED.items() if name in main["reasons"]}
        for phase in ("prefill", "decode"):
            one = [setting for setting in sweep if setting["phase"] == phase and setting["batch"] == 1]
            one = one or [setting for setting in sweep if setting["phase"] == phase]
            speed[phase] = max(one, key=lambda setting: int(setting["length"]), default=None)
            if speed[phase] is None:
                reasons[phase] = _NO_CACHE
        return {**speed, "sweep": sweep, **record.notes, "reasons": reasons}

    def profile_memory(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """`parameters`, `model_bytes`, `parts` with the size of each, and what running takes beside the weights.

        `running` has `cache_bytes` and `activation_bytes` for each `batch` and `length`, batch 1 first. With
        `process=True` also `peak_bytes` and `run_bytes` of a `process`.
        """
        record = self.session.measure(MemoryUse(**options), data_loader)
        memory: dict[str, Any] = {"parts": by_scope(record, "part"), "running": [], "reasons": {}}
        for entry in entries(record, "model")["model"]:
            if "activation_bytes" in entry:
                memory["running"].append({"reasons": {}, **entry})
            else:
                memory |= entry
        return {**memory, **record.notes}

    def profile_layers(self, data_loader: Any, **options: Any) -> dict[str, Any]:
        """`total_seconds` of a pass, of `layers` and of `modules`, these with `self_seconds` and `calls` too."""
        record = self.session.measure(LayerTimes(**options), data_loader)
        layers = {scope: layer["total_seconds"] for scope, layer in by_scope(record, "layer").items()}
        model = {"reasons": {}, **by_scope(record, "model")["model"]}
        return {"layers": layers, "modules": by_scope(record, "module"), **model, **record.notes}

    def analyze(
        self, data_loader: Any, *, seconds: float = InferenceSpeed.seconds, process: bool = False,
        grid_work: float = InferenceSpeed.work, one_example: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """All four, by `basic_metrics`, `speed`, `memory` and `layers`; each setting is timed for so many seconds.

        `process=True` also measures the high-water mark of a process that loads the model and runs it. The grid of
        prefill and decode is one that a pass of `grid_work` multiply-adds covers. With `one_example` layers are timed
        on the first example alone.
        """
        with self.session.sharing(data_loader):
            own = isinstance(self.session.task, EncoderTask)
            return {
                "basic_metrics": {"reasons": {"loss": NOTE}} if own else self.compute_basic_metrics(data_loader),
                "speed": self.benchmark_inference_speed(data_loader, seconds=seconds, work=grid_work),
                "memory": self.profile_memory(data_loader, process=process),
                "layers": self.profile_layers(data_loader, seconds=4 * seconds, one_example=one_example),
            }
