"""The size of a model and of its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantised_units import is_in_head, part_in_block
from learnscope.names import resolve
from learnscope.task import unwrap

PARTS = ("embedding", "attention", "mlp", "norm", "head", "other")
_NORM = re.compile(r"\w*norm\w*", re.IGNORECASE)
_EMBEDDING = re.compile(r"\w*(?:embed|embedding|embeddings)|wte|wpe", re.IGNORECASE)


@dataclass(slots=True)
class Size:
    """Number of parameters, and bytes of parameters and buffers."""

    parameters: int = 0
    bytes: int = 0


def sizes(model: nn.Module) -> tuple[dict[str, Size], dict[str, str]]:
    """The size of each of `PARTS`, and the tied tensors, which are not counted, with the earlier ones that are."""
    parts = {part: Size() for part in PARTS}
    tied: dict[str, str] = {}
    known: dict[Any, str] = {}
    head = _output_layer(model)
    for path, module, name, tensor, is_parameter in _tensors(model):
        full = f"{path}.{name}" if path else name
        key = _identity(tensor)
        if key in known:
            tied[full] = known[key]
            continue
        known[key] = full
        size = parts["head" if module is head else part_of(full, module)]
        size.parameters += tensor.numel() if is_parameter else 0
        size.bytes += held_bytes(tensor)
    return parts, tied


def part_of(name: str, module: nn.Module) -> str:
    """The part that a tensor belongs to, by the class of its module and by its path."""
    if getattr(module, "num_embeddings", None) is not None:
        return "embedding"
    if _NORM.fullmatch(type(module).__name__):
        return "norm"
    resolved = resolve(name)
    path = resolved.clean.removeprefix(resolved.layer) if resolved.recognised else resolved.clean
    if not resolved.recognised and is_in_head(path):
        return "head"
    if not resolved.recognised and any(map(_EMBEDDING.fullmatch, path.split("."))):
        return "embedding"
    part = part_in_block(path)
    return "attention" if part == "attn" else part


def held_bytes(tensor: Tensor) -> int:
    """Bytes in memory: for a quantised tensor those of its parts, for an expanded one those of its storage."""
    total = 0
    for part in plain_parts(tensor):
        whole = part.numel() * part.element_size()
        in_storage = not part.is_meta and part.layout is torch.strided
        total += min(whole, part.untyped_storage().nbytes()) if in_storage else whole
    return total


def plain_parts(tensor: Tensor) -> list[Tensor]:
    """The plain tensors that a quantised one is made of; otherwise the tensor itself."""
    if not callable(flatten := getattr(tensor, "__tensor_flatten__", None)):
        return [tensor.detach()]
    names, _ = flatten()
    return [part for name in names for part in plain_parts(getattr(tensor, name))]


def _tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor, bool]]:
    for path, module in model.named_modules():
        for kept, is_parameter in ((module._parameters, True), (module._buffers, False)):
            for name, tensor in kept.items():
                if tensor is not None:
                    yield path, module, name, tensor, is_parameter


def _identity(tensor: Tensor) -> Any:
    """Equal for tensors that share the same memory."""
    plain = tensor.layout is torch.strided and not hasattr(tensor, "__tensor_flatten__")
    if tensor.is_meta or not tensor.numel() or not plain:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.numel(), str(tensor.device)


def _output_layer(model: nn.Module) -> nn.Module | None:
    getter = getattr(unwrap(model), "get_output_embeddings", None)
    layer = getter() if callable(getter) else None
    return layer if isinstance(layer, nn.Module) else None
