"""The real speed of a model with weights in fewer bits: torchao's copies compared with the model itself."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.model.bits.torchao_export import ExportError, to_torchao
from learnscope.model.cost.calls import call_of, real_tokens
from learnscope.model.cost.memory_parts import plain_parts
from learnscope.model.cost.timing import Timed, fixed_threads, take_turns, waiting_for
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.reference import Reference, compare_outputs
from learnscope.task import Task
from learnscope.tensor.bits.quantize import QuantiseError

ORIGINAL = "original"


def exported_speed(
    model: nn.Module, task: Task, batch: Any, reference: Sequence[Reference], *, widths: Sequence[int],
    seconds: float, repeats: int, threads: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Time the model and copies with blocks at `widths` bits in turn, all in memory: numbers, or reasons for none."""
    device = model_device(model)
    batch = task.to(batch, device)
    reasons: dict[str, str] = {}
    copies: dict[str, nn.Module] = {ORIGINAL: model}
    for bits in widths:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about tied embeddings, which are not units here
                copies[f"int{bits}"] = to_torchao(model, uniform(find_units(model), bits))
        except (ExportError, QuantiseError, UnitsError) as error:
            reasons[f"int{bits}"] = str(error)
    with ExitStack() as stack, torch.no_grad():
        for copy in copies.values():
            stack.enter_context(guard(copy))
        used = stack.enter_context(fixed_threads(threads))
        timed = {name: Timed(call_of(copy, task, batch).run, seconds) for name, copy in copies.items()}
        times = take_turns(timed, repeats=repeats, wait=waiting_for(device))
        tokens = real_tokens(batch)
        rows: dict[str, dict[str, Any]] = {}
        for name, copy in copies.items():
            median, mean = statistics.median(times[name].seconds), times[name].mean
            compared = compare_outputs(copy, task, [batch], reference)
            tensors = [part for tensor in [*copy.parameters(), *copy.buffers()] for part in plain_parts(tensor)]
            storages = [tensor.untyped_storage() for tensor in tensors]
            nbytes = {(str(storage.device), storage.data_ptr()): storage.nbytes() for storage in storages}
            rows[name] = {
                "latency_p50": median,
                "latency_mean": mean,
                "latency_n": len(times[name].seconds),
                "examples_per_second": task.size(batch) / mean,
                "tokens_per_second": None if tokens is None else tokens / mean,
                "speed_up": statistics.median(times[ORIGINAL].seconds) / median,
                "weight_bytes": sum(nbytes.values()),
                "kl": float(compared["kl"]),
                "mse": float(compared["mse"]),
            }
    return {"rows": rows, "reasons": reasons, "threads": used, "device": str(device)}
