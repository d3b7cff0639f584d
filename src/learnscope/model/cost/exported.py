"""The real speed of torchao's copies of a model in fewer bits, beside the model itself."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.model.bits.torchao_export import ExportError, to_torchao
from learnscope.model.cost.calls import Calls, call_of, can_decode, decode, max_positions, real_tokens
from learnscope.model.cost.memory_parts import plain_parts
from learnscope.model.cost.timing import Ratio, Timed, fixed_threads, take_pairs, waiting_for
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.reference import Reference
from learnscope.task import Task
from learnscope.tensor.bits.quantize import QuantiseError
from learnscope.tensor.outputs.divergence import summarise

ORIGINAL = "original"
Clock = Callable[[], float]


@torch.no_grad()
def exported_speed(
    model: nn.Module, task: Task, batch: Any, reference: Sequence[Reference], *, widths: Sequence[int],
    seconds: float, repeats: int, threads: int | None, clock: Clock = time.perf_counter,
) -> dict[str, Any]:  # fmt: skip
    """Time the model and copies with blocks at `widths` bits in turn, all in memory: numbers, or reasons for none.

    A pass over the batch; and, of causal language models, one decoded token after one example of it.
    """
    device = model_device(model)
    batch = task.to(batch, device)
    copies, reasons = _copies(model, widths)
    with ExitStack() as stack:
        for copy in copies.values():
            stack.enter_context(guard(copy))
        used = stack.enter_context(fixed_threads(threads))
        wait, passes, compared = waiting_for(device), {}, {}
        for name, copy in copies.items():
            began = clock()
            call = call_of(copy, task, batch, lambda model, batch: task.positions(model, batch).logits)
            wait()
            passes[name] = Timed(call.run, seconds, ran=[clock() - began])
            compared[name] = summarise([reference[0].compare(call.logits)])
        options: dict[str, Any] = {"repeats": repeats, "wait": wait, "clock": clock}
        whole = take_pairs(passes.pop(ORIGINAL), passes, **options)
        decoded, no_decode = _decoded(copies, task, batch, seconds, options)
    tokens, size = real_tokens(batch), task.size(batch)
    rows: dict[str, dict[str, Any]] = {}
    for name, copy in copies.items():
        rows[name] = {
            **_times(whole, name), **{f"decode_{key}": value for key, value in _times(decoded, name).items()},
            "weight_bytes": held_bytes(copy), "kl": float(compared[name]["kl"]), "mse": float(compared[name]["mse"]),
        }  # fmt: skip
        mean = rows[name]["latency_mean"]
        rows[name] |= {
            "examples_per_second": size / mean,
            "tokens_per_second": None if tokens is None else tokens / mean,
        }
    return {"rows": rows, "reasons": reasons, "no_decode": no_decode, "threads": used, "device": str(device)}


def _copies(model: nn.Module, widths: Sequence[int]) -> tuple[dict[str, nn.Module], dict[str, str]]:
    copies, reasons = {ORIGINAL: model}, {}
    for bits in widths:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about tied embeddings, which are not units here
                copies[f"int{bits}"] = to_torchao(model, uniform(find_units(model), bits))
        except (ExportError, QuantiseError, UnitsError) as error:
            reasons[f"int{bits}"] = str(error)
    return copies, reasons


def _decoded(
    copies: dict[str, nn.Module], task: Task, batch: Any, seconds: float, options: dict[str, Any]
) -> tuple[dict[str, Ratio], str | None]:
    """One more token after the first example of the batch; or why that cannot be timed."""
    model = copies[ORIGINAL]
    if not can_decode(model, task):
        return {}, "not a causal language model of transformers with a cache"
    calls, most = Calls(model, task, task.take(batch, 1)), max_positions(model)
    length = min(calls.tokens, calls.tokens if most is None else most - 1)
    timed = {}
    try:
        for name, copy in copies.items():
            run, forget = decode(copy, *calls.text(1, length))
            timed[name] = Timed(run, seconds / 2, forget)
    # a copy may not support a single row
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        return {}, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return take_pairs(timed.pop(ORIGINAL), timed, **options), None


def _times(found: dict[str, Ratio], name: str) -> dict[str, Any]:
    """Of the model itself: all of its passes, and a ratio of 1."""
    if not found:
        return {}
    if name in found:
        times, (value, low, high) = found[name].seconds, found[name].interval()
        ratio = {"speed_up": value, "speed_up_low": low, "speed_up_high": high}
    else:
        times = max((ratio.base for ratio in found.values()), key=len)
        ratio = {"speed_up": 1.0, "speed_up_low": 1.0, "speed_up_high": 1.0}
    median, mean = statistics.median(times), statistics.fmean(times)
    return {"latency_p50": median, "latency_mean": mean, "latency_n": len(times), **ratio}


def held_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers as they are held, shared memory once."""
    tensors = [part for tensor in [*model.parameters(), *model.buffers()] for part in plain_parts(tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({(str(storage.device), storage.data_ptr()): storage.nbytes() for storage in storages}.values())
