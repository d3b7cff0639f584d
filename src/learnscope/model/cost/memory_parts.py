"""How large a model is, and which of its parts take how much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantised_units import _ATTENTION, _HEAD, _MLP
from learnscope.names import resolve
from learnscope.task import unwrap

PARTS = ("embedding", "attention", "mlp", "norm", "head", "other")
_NORM = re.compile(r"\w*norm\w*", re.IGNORECASE)
_EMBEDDING = re.compile(r"\w*(?:embed|embedding|embeddings)|wte|wpe", re.IGNORECASE)


@dataclass(slots=True)
class Size:
    """Numbers in parameters, and bytes of parameters and buffers."""

    parameters: int = 0
    bytes: int = 0


def sizes(model: nn.Module) -> tuple[dict[str, Size], dict[str, str]]:
    """The size of each of `PARTS`, and which tensors are tied to which earlier ones, that count alone."""
    found = {part: Size() for part in PARTS}
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
        size = found["head" if module is head else part_of(full, module)]
        size.parameters += tensor.numel() if is_parameter else 0
        size.bytes += held_bytes(tensor)
    return found, tied


def part_of(name: str, module: nn.Module) -> str:
    """The part that a tensor of this name belongs to, by the class of the module that owns it and by its path."""
    if getattr(module, "num_embeddings", None) is not None:
        return "embedding"
    if _NORM.fullmatch(type(module).__name__):
        return "norm"
    found = resolve(name)
    if found.recognised:
        return _inside(found.clean.removeprefix(found.layer).strip(".").split("."))
    pieces = found.clean.split(".")
    if any(_HEAD.fullmatch(piece) for piece in pieces):
        return "head"
    if any(_EMBEDDING.fullmatch(piece) for piece in pieces):
        return "embedding"
    return _inside(pieces)


def held_bytes(tensor: Tensor) -> int:
    """Bytes in memory: of a quantised tensor those that it is made of, of an expanded one those that are there."""
    if callable(parts := getattr(tensor, "__tensor_flatten__", None)):
        return sum(held_bytes(getattr(tensor, name)) for name in parts()[0])
    whole = tensor.numel() * tensor.element_size()
    if tensor.is_meta or tensor.layout is not torch.strided:
        return whole
    return min(whole, tensor.untyped_storage().nbytes())


def _inside(pieces: list[str]) -> str:
    for piece in pieces:
        if _ATTENTION.fullmatch(piece):
            return "attention"
        if _MLP.fullmatch(piece):
            return "mlp"
    return "other"


def _tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor, bool]]:
    for path, module in model.named_modules():
        for kept, is_parameter in ((module._parameters, True), (module._buffers, False)):
            for name, tensor in kept.items():
                if tensor is not None:
                    yield path, module, name, tensor, is_parameter


def _identity(tensor: Tensor) -> Any:
    """Equal for tensors that are the same memory."""
    plain = tensor.layout is torch.strided and not hasattr(tensor, "__tensor_flatten__")
    if tensor.is_meta or not tensor.numel() or not plain:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.numel(), str(tensor.device)


def _output_layer(model: nn.Module) -> nn.Module | None:
    found = getattr(unwrap(model), "get_output_embeddings", None)
    layer = found() if callable(found) else None
    return layer if isinstance(layer, nn.Module) else None
