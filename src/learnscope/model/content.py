"""Digests of what is examined: equal digests, equal weights, data and ways of reading them."""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.task import Task


def model_content(model: nn.Module) -> str:
    """By its structure, its configuration and every bit of its parameters and buffers."""
    digest = hashlib.sha256()
    # the classes' addresses say nothing; what they print does: sizes, rates, activations
    _take(digest, f"{type(model).__module__}.{type(model).__qualname__}\n{model!r}")
    config = getattr(model, "config", None)
    if callable(as_text := getattr(config, "to_json_string", None)):
        _take(digest, as_text(use_diff=False))
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        _take(digest, name)
        _tensor(digest, tensor)
    return digest.hexdigest()


def data_content(batches: Iterable[Any]) -> str:
    """By every bit of every tensor, in order, wherever it stands in its batch."""
    digest = hashlib.sha256()
    for batch in batches:
        _value(digest, batch)
    return digest.hexdigest()


def task_content(task: Task | None) -> str:
    """By its class, the source of that where there is one, and its attributes."""
    if task is None:
        return "none"
    try:
        source = inspect.getsource(type(task))
    except (OSError, TypeError):  # written at a prompt
        source = ""
    return f"{type(task).__module__}.{type(task).__qualname__}\n{source}\n{sorted(vars(task).items(), key=str)!r}"


def machine() -> dict[str, Any]:
    """What times depend on."""
    return {"node": platform.node(), "machine": platform.machine(), "threads": torch.get_num_threads()}


def _value(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        _tensor(digest, value)
    elif isinstance(value, Mapping):
        _take(digest, f"mapping {len(value)}")
        for key, item in value.items():
            _take(digest, str(key))
            _value(digest, item)
    elif isinstance(value, list | tuple):
        _take(digest, f"sequence {len(value)}")
        for item in value:
            _value(digest, item)
    else:
        _take(digest, repr(value))


def _tensor(digest: Any, tensor: Tensor) -> None:
    _take(digest, f"{tensor.dtype} {tuple(tensor.shape)}")
    if tensor.is_meta or not tensor.numel():
        return
    if callable(parts := getattr(tensor, "__tensor_flatten__", None)):  # a quantised weight, made of several tensors
        names, others = parts()
        _take(digest, f"{type(tensor).__qualname__} {others!r}")
        for name in names:
            _tensor(digest, getattr(tensor, name))
        return
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().cpu().contiguous()
    digest.update(plain.reshape(-1).view(torch.uint8).numpy())


def _take(digest: Any, text: str) -> None:
    digest.update(f"{len(text)}:{text}".encode())
