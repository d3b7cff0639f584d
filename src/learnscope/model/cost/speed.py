"""The speed of a model: passes over batches of several sizes, prefill and decoding; torchao's copies in fewer bits."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.model.bits.torchao_export import ExportError, to_torchao
from learnscope.model.cost.calls import (
    Calls,
    call_of,
    can_decode,
    counted_flops,
    decode,
    max_positions,
    prefill,
    real_tokens,
    token_length,
)
from learnscope.model.cost.memory_parts import plain_parts
from learnscope.model.cost.timing import Timed, Times, fixed_threads, take_turns, waiting_for
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.reference import Reference
from learnscope.task import Task
from learnscope.tensor.bits.quantize import QuantiseError
from learnscope.tensor.outputs.divergence import summarise

MAIN_SHARE = 10
"""The data's own batch gets this many times the seconds of another setting: its high percentiles matter most."""
LARGEST_OUTPUT = 1 << 30
"""Settings other than the data's own are skipped if their logits take more than this many bytes."""
NO_TOKENS = "the inputs are no token ids"
ORIGINAL = "original"


class Setting(NamedTuple):
    """What is timed: a phase, the number of examples, and the tokens of each (0: inputs without a length)."""

    phase: str
    batch: int
    length: int
    main: bool = False


@torch.no_grad()
def measured_speed(
    model: nn.Module, task: Task, batch: Any, *, batches: Sequence[int], lengths: Sequence[int], seconds: float,
    repeats: int, threads: int | None = None, clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:  # fmt: skip
    """Time all settings in turn, in eval mode; each as plain numbers, or with the reason for skipping it."""
    device = model_device(model)
    batch = task.to(batch, device)
    with guard(model), fixed_threads(threads) as used:
        tokens = token_length(batch)
        decoded = min(tokens, (max_positions(model) or tokens + 1) - 1) if can_decode(model, task) else None
        calls = Calls(model, task, batch)
        chosen = settings(task.size(batch), tokens, batches, lengths, decoded=decoded)
        prepared = {setting: _timed_or_reason(calls, setting, seconds) for setting in chosen}
        timed = {setting: call for setting, call in prepared.items() if isinstance(call, Timed)}
        times = take_turns(timed, repeats=repeats, wait=waiting_for(device), clock=clock)
    return {
        "settings": [
            setting._asdict() | ({"reason": call} if isinstance(call, str) else _numbers(setting, call, times[setting]))
            for setting, call in prepared.items()
        ],
        "threads": used,
        "device": str(device),
        "warm": next(result.warm for setting, result in times.items() if setting.main),
        "unsettled": [f"{s.phase}, {s.batch} x {s.length}" for s, result in times.items() if not result.warm],
        "compiled": hasattr(model, "_orig_mod"),
    }


def settings(
    size: int, tokens: int, batches: Sequence[int], lengths: Sequence[int], *, decoded: int | None
) -> list[Setting]:
    """The data's own batch first, then each size with each length; in every phase.

    `decoded` is the data's own length, or the largest that leaves room for one more token; None: only "forward".
    """
    chosen = []
    for phase, data_length in (("forward", tokens), ("prefill", tokens), ("decode", decoded)):
        if data_length is None or (decoded is None and phase != "forward"):
            continue
        others = [(n, length) for n in batches for length in [*lengths] or [data_length]]
        pairs = dict.fromkeys([(size, data_length), *others])
        chosen += [Setting(phase, *pair, phase == "forward" and pair == (size, data_length)) for pair in pairs]
    return chosen


def _timed_or_reason(calls: Calls, setting: Setting, seconds: float) -> Timed | str:
    if setting.main:
        return _timed(calls, setting, MAIN_SHARE * seconds)
    try:
        return _impossible(calls, setting) or _timed(calls, setting, seconds)
    # the model or the device may not support a batch of this size
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _impossible(calls: Calls, setting: Setting) -> str | None:
    if setting.length and not calls.tokens:
        return f"{NO_TOKENS}: they have no length to be changed"
    needed, most = setting.length + (setting.phase == "decode"), max_positions(calls.model)
    if most is not None and needed > most:
        return f"{needed} tokens are more than the model's {most} positions"
    size_now = setting.batch * (setting.length or 1)
    bytes_now = calls.output_bytes * size_now / max(1, calls.size * (calls.tokens or 1))
    if setting.phase == "forward" and bytes_now > LARGEST_OUTPUT:
        return f"its outputs alone would take {bytes_now / 2**30:.3g} GiB, more than {LARGEST_OUTPUT / 2**30:g}"
    return None


def _timed(calls: Calls, setting: Setting, seconds: float) -> Timed:
    call, flops, batch = calls.of(setting.batch, setting.length)
    if setting.phase == "forward":
        return Timed(call.run, seconds, tokens=real_tokens(batch), flops=flops)
    arguments = call.kwargs or {}
    if "input_ids" not in arguments:
        raise ValueError("the task does not give the model input_ids, which a cache is made from")
    text = arguments["input_ids"], arguments.get("attention_mask")
    if setting.phase == "prefill":
        run = prefill(calls.model, *text)
        return Timed(run, seconds, tokens=real_tokens(batch), flops=counted_flops(run))
    run, forget = decode(calls.model, *text)
    flops = counted_flops(run)
    forget()
    return Timed(run, seconds, forget, setting.batch, flops)


def _numbers(setting: Setting, call: Timed, times: Times) -> dict[str, Any]:
    mean = times.mean
    flops = call.flops if isinstance(call.flops, int) else None
    return {
        "latency_mean": mean,
        "latency_p50": times.percentile(0.5),
        "latency_p95": times.percentile(0.95),
        "latency_p99": times.percentile(0.99),
        "latency_n": len(times.seconds),
        "latency_warmup": times.warmup,
        "batches_per_second": 1 / mean,
        "examples_per_second": setting.batch / mean,
        "tokens_per_second": None if call.tokens is None else call.tokens / mean,
        "flops": flops,
        "flops_per_second": None if flops is None else flops / mean,
        "not_counted": call.flops if flops is None else None,
        "warm": times.warm,
    }


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
        wait, timed, compared = waiting_for(device), {}, {}
        for name, copy in copies.items():
            began = time.perf_counter()
            call = call_of(copy, task, batch, lambda model, batch: task.positions(model, batch).logits)
            wait()
            timed[name] = Timed(call.run, seconds, ran=[time.perf_counter() - began])
            compared[name] = summarise([reference[0].compare(call.logits)])
        times = take_turns(timed, repeats=repeats, wait=wait)
        tokens = real_tokens(batch)
        rows: dict[str, dict[str, Any]] = {}
        for name, copy in copies.items():
            median, mean = statistics.median(times[name].seconds), times[name].mean
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
                "kl": float(compared[name]["kl"]),
                "mse": float(compared[name]["mse"]),
            }
    return {"rows": rows, "reasons": reasons, "threads": used, "device": str(device)}
