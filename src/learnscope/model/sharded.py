"""Models whose parameters are spread over processes: refused, as each process would measure its part as the whole."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

CURE = (
    "Watch a model under DistributedDataParallel, or one that a single process holds; or gather the weights "
    "(torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True))) and use ls.replay or ls.audit on the full "
    "checkpoint."
)


class ShardedModelError(ValueError):
    """The parameters that this process holds are shards of the model's; the message says of what, and what to do."""


def refuse_shards(model: nn.Module) -> None:
    """Raise if any part of the model is spread over several processes."""
    wrapper: Any = _loaded("torch.distributed.fsdp", "FullyShardedDataParallel")
    for path, module in model.named_modules() if wrapper is not None else ():
        if isinstance(module, wrapper) and (processes := module.process_group.size()) > 1:
            _refuse(f"{path or 'the model'} is wrapped in FullyShardedDataParallel over {processes} processes")
    refuse_shards_among(model.named_parameters())


def refuse_shards_among(named: Iterable[tuple[str, Any]]) -> None:
    """The same for tensors by name; what is not a tensor is passed over."""
    kind: Any = _loaded("torch.distributed.tensor", "DTensor")
    for name, tensor in named:
        if kind is not None and isinstance(tensor, kind):
            processes = tensor.device_mesh.size()
            if processes == 1:
                raise ShardedModelError(
                    f"{name} is a DTensor, which probes cannot read, although one process holds all of it: leave out "
                    "fully_shard and parallelize_module in a training of one process."
                )
            _refuse(f"{name} is a DTensor over {processes} processes (fully_shard or tensor parallel)")
        if not isinstance(tensor, Tensor):
            continue
        if getattr(tensor, "_fsdp_flattened", False) and _processes() > 1:
            _refuse(f"{name} is managed by FullyShardedDataParallel over {_processes()} processes")
        if hasattr(tensor, "ds_id") and hasattr(tensor, "ds_tensor"):
            _refuse(f"{name} is partitioned by DeepSpeed ZeRO-3")


def refuse_sharded(source: Any) -> None:
    """Refuse a module or a state dictionary with shards; anything else is read later."""
    if isinstance(source, nn.Module):
        refuse_shards(source)
    elif isinstance(source, Mapping):
        refuse_shards_among(source.items())


def _refuse(cause: str) -> None:
    raise ShardedModelError(
        f"this model's parameters are shards: {cause}. Each process holds only its part, and numbers about a part "
        f"would be taken for the model's. {CURE}"
    )


def _loaded(module: str, name: str) -> Any:
    """A class of a module that somebody has imported; otherwise there are no objects of it."""
    return getattr(sys.modules.get(module), name, None)


def _processes() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
