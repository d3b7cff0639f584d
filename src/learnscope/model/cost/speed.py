"""The speed of a model: passes over batches of several sizes, prefill and decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from learnscope.model.cost.calls import (
    Calls,
    can_decode,
    counted_flops,
    decode,
    impossible,
    max_positions,
    prefill,
    real_tokens,
    token_length,
)
from learnscope.model.cost.timing import Timed, Times, fixed_threads, take_turns, waiting_for
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task

MAIN_SHARE = 10
"""The data's own batch gets this many times the seconds of another setting: its high percentiles matter most."""
BATCHES, LENGTHS = (1, 4, 16), (32, 128)
"""The grid of prefill and decode, if no other is asked for."""
GRID_WORK = 1e11
"""Multiply-adds that one pass over all of the grid may take, by one for each parameter and token."""


class Setting(NamedTuple):
    """What is timed: a phase, the number of examples, and the tokens of each (0: inputs without a length)."""

    phase: str
    batch: int
    length: int
    main: bool = False


@torch.no_grad()
def measured_speed(
    model: nn.Module, task: Task, batch: Any, *, batches: Sequence[int] | None,
    lengths: Sequence[int] | None, seconds: float, repeats: int, threads: int | None = None, work: float = GRID_WORK,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:  # fmt: skip
    """Time all settings in turn, in eval mode; each as plain numbers, or with the reason for skipping it."""
    device = model_device(model)
    batch = task.to(batch, device)
    with guard(model), fixed_threads(threads) as used:
        tokens = token_length(batch)
        decoded = min(tokens, (max_positions(model) or tokens + 1) - 1) if can_decode(model, task) else None
        calls = Calls(model, task, batch)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        chosen = settings(
            task.size(batch), tokens, batches, lengths, decoded=decoded, parameters=parameters,
            positions=max_positions(model), work=work,
        )  # fmt: skip
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


def grid(
    parameters: int, positions: int | None, batches: Sequence[int] = (), lengths: Sequence[int] = (),
    work: float = GRID_WORK,
) -> list[tuple[int, int]]:  # fmt: skip
    """Pairs of examples and tokens: the smallest first, as many as a model of so many parameters can be asked for.

    >>> grid(10**7, None)
    [(1, 32), (1, 128), (4, 32), (4, 128), (16, 32), (16, 128)]
    >>> grid(135 * 10**6, None), grid(10**9, None), grid(10**7, 20)
    ([(1, 32), (1, 128), (4, 32)], [(1, 32)], [(1, 19), (4, 19), (16, 19)])
    """
    room = [length for length in lengths or LENGTHS if positions is None or length < positions]
    pairs = [(n, length) for n in batches or BATCHES for length in room or [max(1, (positions or 2) - 1)]]
    chosen: list[tuple[int, int]] = []
    for pair in sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair)):
        tokens = sum(n * length for n, length in [*chosen, pair])
        if chosen and not batches and parameters * tokens > work:
            break
        chosen.append(pair)
    return chosen


def settings(
    size: int, tokens: int, batches: Sequence[int] | None, lengths: Sequence[int] | None, *, decoded: int | None,
    parameters: int = 0, positions: int | None = None, work: float = GRID_WORK,
) -> list[Setting]:  # fmt: skip
    """The data's own batch first, and one example of it; then prefill and decode over the grid.

    If batches or lengths are given, each with each in every phase. `decoded` is the data's own length, or the largest
    that leaves room for one more token; None: only "forward".
    """
    chosen = []
    asked = batches is not None or lengths is not None
    for phase, data_length in (("forward", tokens), ("prefill", tokens), ("decode", decoded)):
        if data_length is None or (decoded is None and phase != "forward"):
            continue
        if asked or phase == "forward":
            sizes = (batches or ()) if asked else (1,) if decoded is not None else (1, 8)
            pairs = [(size, data_length), *((n, length) for n in sizes for length in lengths or [data_length])]
        else:
            pairs = grid(parameters, positions, work=work)
        chosen += [
            Setting(phase, *pair, phase == "forward" and pair == (size, data_length)) for pair in dict.fromkeys(pairs)
        ]
    return chosen


def _timed_or_reason(calls: Calls, setting: Setting, seconds: float) -> Timed | str:
    if setting.main:
        return _timed(calls, setting, MAIN_SHARE * seconds)
    try:
        return impossible(calls, setting.phase, setting.batch, setting.length) or _timed(calls, setting, seconds)
    # the model or the device may not support a batch of this size
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _timed(calls: Calls, setting: Setting, seconds: float) -> Timed:
    if setting.phase == "forward":
        call, flops, batch = calls.of(setting.batch, setting.length)
        return Timed(call.run, seconds, tokens=real_tokens(batch), flops=flops)
    ids, mask = calls.text(setting.batch, setting.length)
    if setting.phase == "prefill":
        run = prefill(calls.model, ids, mask)
        real = ids.numel() if mask is None else int((mask != 0).sum())
        return Timed(run, seconds, tokens=real, flops=counted_flops(run))
    run, forget = decode(calls.model, ids, mask)
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
