"""What running a model takes beside its weights: the cache of keys and values, and activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.cost.calls import Calls, can_decode, impossible, last_only, new_cache, prefill, token_length
from learnscope.model.cost.memory_parts import plain_parts
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task, unwrap


class NoPeak(RuntimeError):
    """The device's allocator does not tell its peak, or somebody else is profiling; the message says which."""


def allocated(run: Callable[[], Any], device: torch.device) -> int:
    """The most bytes of the device's allocator at once while `run` runs, above those before.

    On the CPU the profiler sees each allocation, also those inside of a kernel; memory that a library such as MKL
    takes from the system itself is not seen.
    """
    if device.type != "cpu":
        module: Any = torch.get_device_module(device)
        if not hasattr(module, "reset_peak_memory_stats"):
            raise NoPeak(f"the allocator of {device.type} keeps no peak")
        module.synchronize(device)
        module.reset_peak_memory_stats(device)
        before = int(module.memory_allocated(device))
        result = run()
        module.synchronize(device)
        del result  # held until here: the outputs belong to the peak
        return int(module.max_memory_allocated(device)) - before
    return _allocated_on_cpu(run)


def _allocated_on_cpu(run: Callable[[], Any]) -> int:
    """By torch's older profiler: the newer one writes to the terminal."""
    autograd: Any = torch.autograd
    try:
        config = autograd.ProfilerConfig(
            autograd.ProfilerState.CPU, False, True, False, False, False, torch._C._profiler._ExperimentalConfig()
        )
        autograd._enable_profiler_legacy(config)
    except (AttributeError, TypeError, RuntimeError) as error:  # another torch, or another profiler is running
        raise NoPeak(f"torch's profiler could not be started ({error})") from error
    try:
        result = run()
    finally:
        threads = autograd._disable_profiler_legacy()
    del result
    now = most = 0
    for event in (event for events in threads for event in events if event.kind() == "memory_alloc"):
        now += event.cpu_memory_usage()
        most = max(most, now)
    return most


@torch.no_grad()
def running_memory(model: nn.Module, task: Task, batch: Any, batches: Sequence[int]) -> list[dict[str, Any]]:
    """For each number of examples: bytes of the cache of a text as long as the data's, and of activations at the peak.

    A causal language model reads the text into its cache and gives the logits of its last position, as for writing on
    from there; other models make a forward pass, and have no cache.
    """
    device = model_device(model)
    batch = task.to(batch, device)
    rows = []
    with guard(model):
        cached, calls = can_decode(model, task), Calls(model, task, batch)
        for size in dict.fromkeys((*batches, task.size(batch))):
            row: dict[str, Any] = {"phase": "prefill" if cached else "forward", "batch": size, "cache": None}
            row |= {"length": token_length(batch), "activations": None, "reason": None}
            try:
                row["reason"] = impossible(calls, row["phase"], size, row["length"])
                if row["reason"] is None:
                    row |= _measured(calls, size, row["length"], device, cached=cached)
            # the model or the device may not support a batch of this size
            except (RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
                row["reason"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            rows.append(row)
    return rows


def _measured(calls: Calls, size: int, length: int, device: torch.device, *, cached: bool) -> dict[str, int]:
    if not cached:
        return {"cache": 0, "activations": allocated(calls.of(size, length)[0].run, device)}
    text = calls.text(size, length)
    cache = cache_bytes(calls.model, *text)
    return {"cache": cache, "activations": max(0, allocated(prefill(calls.model, *text), device) - cache)}


def cache_bytes(model: nn.Module, ids: Tensor, mask: Tensor | None) -> int:
    """Bytes of all tensors of the model's own cache after it has read a text."""
    inner: Any = unwrap(model)
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": True, "past_key_values": new_cache(inner)}
    arguments |= {} if mask is None else {"attention_mask": mask}
    model(**arguments, **last_only(inner))
    tensors = [
        part
        for layer in arguments["past_key_values"].layers
        for value in vars(layer).values()
        if isinstance(value, Tensor)
        for part in plain_parts(value)
    ]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def read_bytes(model: nn.Module) -> tuple[int, int]:
    """Parameters that take part in the products of every token, and their bytes with those of all buffers.

    These are all but tables in which a token only looks its row up; a table that is also the head is read whole.
    """
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    elsewhere = {
        id(tensor) for module in model.modules() if not isinstance(module, nn.Embedding)
        for tensor in module._parameters.values() if tensor is not None
    }  # fmt: skip
    looked_up = {id(table) for table in tables} - elsewhere
    read = {id(parameter): parameter for parameter in model.parameters() if id(parameter) not in looked_up}
    numbers = sum(parameter.numel() for parameter in read.values())
    tensors = [*read.values(), *model.buffers()]
    return numbers, sum(part.numel() * part.element_size() for tensor in tensors for part in plain_parts(tensor))
