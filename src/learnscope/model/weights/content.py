"""Digests of models, data and tasks: equal digests mean equal weights, data and code."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from learnscope.task import Task

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, tuple, list, FunctionType)
_NOT_CONTENT = frozenset(vars(nn.Module())) | {"name_or_path"}
"""Attributes that every module has, and the place a model was loaded from."""


def model_content(model: nn.Module) -> str:
    """Digest of its structure, configuration, code, plain attributes, and every bit of its parameters and buffers."""
    digest = hashlib.sha256()
    # what modules print: sizes, rates, activations
    _take(digest, f"{type(model).__module__}.{type(model).__qualname__}\n{model!r}")
    config = getattr(model, "config", None)
    if callable(as_text := getattr(config, "to_json_string", None)):
        _take(digest, as_text(use_diff=False))
        _take(digest, str(getattr(config, "_attn_implementation", None)))
    for path, module in model.named_modules():
        # attributes that a forward may read and no text shows, such as self.scale = 2
        own = {name: value for name, value in vars(module).items() if name not in _NOT_CONTENT}
        _take(digest, path)
        _value(digest, {name: own[name] for name in sorted(own) if isinstance(own[name], _PLAIN)})
    _code(digest, {type(module): None for module in model.modules()})
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        _take(digest, name)
        _tensor(digest, tensor)
    return digest.hexdigest()


def data_content(batches: Iterable[Any]) -> str:
    """Digest of every bit of every tensor in every batch, in order."""
    digest = hashlib.sha256()
    for batch in batches:
        _value(digest, batch)
    return digest.hexdigest()


def task_content(task: Task | None) -> str:
    """Digest of its class, the code of the class, and its attributes."""
    if task is None:
        return "none"
    digest = hashlib.sha256()
    _code(digest, [type(task)])
    _value(digest, dict(sorted(getattr(task, "__dict__", {}).items())))
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """The machine's properties that run times depend on."""
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
    elif isinstance(value, np.ndarray) and value.dtype == object:
        _value(digest, value.tolist())
    elif isinstance(value, np.ndarray):  # its repr leaves out most of it
        _take(digest, f"{value.dtype} {value.shape}")
        digest.update(value.tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _take(digest, type(value).__qualname__)
        _value(digest, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif isinstance(value, FunctionType):
        _take(digest, f"{value.__module__}.{value.__qualname__}\n{_source(value)}")
        _value(digest, [content for cell in value.__closure__ or () if (content := _content(cell)) is not None])
    elif isinstance(value, partial):
        _value(digest, [value.func, value.args, value.keywords])
    elif isinstance(value, nn.Module):  # a loss with class weights, which its repr leaves out
        _take(digest, model_content(value))
    elif isinstance(value, RemovableHandle):  # gradient checkpointing keeps some: their addresses do not matter
        _take(digest, type(value).__qualname__)
    else:
        _take(digest, repr(value))


def _code(digest: Any, kinds: Iterable[type]) -> None:
    """Classes and their bases: those of a package by its version, others by their source."""
    for kind in dict.fromkeys(base for derived in kinds for base in derived.__mro__ if base is not object):
        version = getattr(sys.modules.get(kind.__module__.partition(".")[0]), "__version__", None)
        _take(digest, f"{kind.__module__}.{kind.__qualname__}\n{version or _source(kind)}")


def _source(code: Any) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):  # defined at a prompt
        return code.__code__.co_code.hex() if isinstance(code, FunctionType) else ""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the name was never set
        return None


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
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _take(digest: Any, text: str) -> None:
    digest.update(f"{len(text)}:{text}".encode())
