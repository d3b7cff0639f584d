"""How long a model takes: whole passes over batches of several sizes; for language models reading and decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from learnscope.model.cost.cached import decode, decodes, longest, prefill
from learnscope.model.cost.flops import counted_flops
from learnscope.model.cost.timing import Timed, Times, fixed_threads, take_turns, waiting_for
from learnscope.model.guard import guard
from learnscope.model.outputs.calls import Call, call_of
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.outputs.resized import real_tokens, resized, token_length
from learnscope.task import HuggingFaceTask, Task

MAIN_SHARE = 10
"""The data's own batch may take so many times the seconds of another setting: its tail is what is asked for most."""
LARGEST_OUTPUT = 1 << 30
"""Bytes of logits beyond which a setting that the data does not have is left out."""
NO_TOKENS = "the inputs are no token ids"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is timed: a phase, with so many examples of so many tokens each (0: inputs that have no length)."""

    phase: str
    batch: int
    length: int
    main: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """A setting that can be timed."""

    timed: Timed
    tokens: int | None
    flops: int | str


@torch.no_grad()
def measured_speed(
    model: nn.Module, task: Task, batch: Any, *, batches: Sequence[int], lengths: Sequence[int], seconds: float,
    repeats: int, threads: int | None = None, clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:  # fmt: skip
    """Time all settings in turn, in eval mode; each as plain numbers, or with the reason why it was left out."""
    device = model_device(model)
    batch = task.to(batch, device)
    rows: list[dict[str, Any]] = []
    with guard(model), fixed_threads(threads) as used:
        tokens = token_length(batch)
        room = min(tokens, (longest(model) or tokens + 1) - 1) if decodes(model, task) else None
        wanted = settings(task.size(batch), tokens, batches, lengths, decoded=room)
        calls = Calls(model, task, batch)
        ready: dict[Setting, Ready] = {}
        for setting in wanted:
            made = _made_ready(calls, setting, seconds)
            if isinstance(made, Ready):
                ready[setting] = made
            else:
                rows.append({**asdict(setting), "reason": made})
        times = take_turns(
            {setting: one.timed for setting, one in ready.items()},
            repeats=repeats,
            wait=waiting_for(device),
            clock=clock,
        )
    rows += [{**asdict(setting), **_numbers(setting, ready[setting], found)} for setting, found in times.items()]
    order = {setting: place for place, setting in enumerate(wanted)}
    rows.sort(key=lambda row: order[Setting(row["phase"], row["batch"], row["length"], row["main"])])
    return {
        "settings": rows,
        "threads": used,
        "device": str(device),
        "warm": next(found.warm for setting, found in times.items() if setting.main),
        "unsettled": [f"{s.phase}, {s.batch} x {s.length}" for s, found in times.items() if not found.warm],
        "compiled": hasattr(model, "_orig_mod"),
    }


def settings(
    size: int, tokens: int, batches: Sequence[int], lengths: Sequence[int], *, decoded: int | None
) -> list[Setting]:
    """The data's own batch first, then each size with each length, each of them in every phase there is.

    `decoded` is the data's own length or what leaves room for one more token; None: there is but one phase.
    """
    found = []
    for phase, own in (("forward", tokens), ("prefill", tokens), ("decode", decoded)):
        if own is None or (decoded is None and phase != "forward"):
            continue
        pairs = dict.fromkeys([(size, own), *((n, length) for n in batches for length in [*lengths] or [own])])
        found += [Setting(phase, *pair, phase == "forward" and pair == (size, own)) for pair in pairs]
    return found


class Calls:
    """How the model is called for batches of each size, found by one pass for each, with its operations counted."""

    def __init__(self, model: nn.Module, task: Task, batch: Any) -> None:
        self.model, self.task, self.batch = model, task, batch
        self.size, self.tokens = task.size(batch), token_length(batch)
        self._known: dict[tuple[int, int], tuple[Call, int | str]] = {}
        self.output_bytes = 0
        self.of(self.size, self.tokens)

    def of(self, size: int, length: int) -> tuple[Call, int | str, Any]:
        """The call, its operations, and the batch; outputs are not kept, but for how large the first were."""
        batch = resized(self.task, self.batch, size, length)
        if (size, length) not in self._known:
            call, flops = self._called(batch)
            self.output_bytes = self.output_bytes or call.logits.nbytes
            self._known[size, length] = replace(call, logits=call.logits.new_empty(0)), flops
        return *self._known[size, length], batch

    def _called(self, batch: Any) -> tuple[Call, int | str]:
        found: list[Call] = []
        if type(self.task).logits is not HuggingFaceTask.logits:  # a task may have products of matrices of its own
            call = call_of(self.model, self.task, batch)
            return call, counted_flops(call.run)
        flops = counted_flops(lambda: found.append(call_of(self.model, self.task, batch)))
        return found[0] if found else call_of(self.model, self.task, batch), flops


def _made_ready(calls: Calls, setting: Setting, seconds: float) -> Ready | str:
    if setting.main:
        return _prepared(calls, setting, MAIN_SHARE * seconds)
    if (reason := _impossible(calls, setting)) is not None:
        return reason
    try:
        return _prepared(calls, setting, seconds)
    # a batch of a size that the data does not have may be more than a model or the device can take
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        said = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {said[0]}"


def _impossible(calls: Calls, setting: Setting) -> str | None:
    if setting.length and not calls.tokens:
        return f"{NO_TOKENS}: they have no length to be changed"
    needed, most = setting.length + (setting.phase == "decode"), longest(calls.model)
    if most is not None and needed > most:
        return f"{needed} tokens are more than the model's {most} positions"
    size_now = setting.batch * (setting.length or 1)
    bytes_now = calls.output_bytes * size_now / max(1, calls.size * (calls.tokens or 1))
    if setting.phase == "forward" and bytes_now > LARGEST_OUTPUT:
        return f"its outputs alone would take {bytes_now / 2**30:.3g} GiB, more than {LARGEST_OUTPUT / 2**30:g}"
    return None


def _prepared(calls: Calls, setting: Setting, seconds: float) -> Ready:
    call, flops, batch = calls.of(setting.batch, setting.length)
    if setting.phase == "forward":
        return Ready(Timed(call.run, seconds), real_tokens(batch), flops)
    given = call.kwargs or {}
    if "input_ids" not in given:
        raise ValueError("the task does not give the model input_ids, which a cache is made from")
    if setting.phase == "prefill":
        run = prefill(calls.model, given["input_ids"], given.get("attention_mask"))
        return Ready(Timed(run, seconds), real_tokens(batch), counted_flops(run))
    run, forget = decode(calls.model, given["input_ids"], given.get("attention_mask"))
    flops = counted_flops(run)
    forget()
    return Ready(Timed(run, seconds, after=forget), setting.batch, flops)


def _numbers(setting: Setting, ready: Ready, found: Times) -> dict[str, Any]:
    mean = found.mean
    counted = isinstance(ready.flops, int)
    return {
        "latency_mean": mean,
        "latency_p50": found.percentile(0.5),
        "latency_p95": found.percentile(0.95),
        "latency_p99": found.percentile(0.99),
        "latency_n": len(found.seconds),
        "latency_warmup": found.warmup,
        "batches_per_second": 1 / mean,
        "examples_per_second": setting.batch / mean,
        "tokens_per_second": None if ready.tokens is None else ready.tokens / mean,
        "flops": ready.flops if counted else None,
        "flops_per_second": int(ready.flops) / mean if counted else None,
        "not_counted": None if counted else ready.flops,
        "warm": found.warm,
    }
