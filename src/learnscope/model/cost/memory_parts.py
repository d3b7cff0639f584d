"""The size of a model and of its parts."""

from __future__ import annotations

import re
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
    names: dict[Any, str] = {}
    get_head = getattr(unwrap(model), "get_output_embeddings", None)
    head = get_head() if callable(get_head) else None
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            full = f"{path}.{name}" if path else name
            plain = tensor.layout is torch.strided and not hasattr(tensor, "__tensor_flatten__")
            has_memory = plain and not tensor.is_meta and tensor.numel()
            memory = (tensor.data_ptr(), tensor.dtype, tensor.numel(), str(tensor.device)) if has_memory else id(tensor)
            first = names.setdefault(memory, full)
            if first != full:
                tied[full] = first
                continue
            size = parts["head" if module is head else part_of(full, module)]
            size.parameters += tensor.numel() if name in module._parameters else 0
            size.bytes += sum(map(_nbytes, plain_parts(tensor)))
    return parts, tied


def part_of(name: str, module: nn.Module) -> str:
    """The part that a tensor belongs to, by the class of its module and by its path."""
    if getattr(module, "num_embeddings", None) is not None:
        return "embedding"
    if _NORM.fullmatch(type(module).__name__):
        return "norm"
    resolved = resolve(name)
    path = resolved.clean
    if resolved.recognised:
        path = path.removeprefix(resolved.layer)
    elif is_in_head(path):
        return "head"
    elif any(map(_EMBEDDING.fullmatch, path.split("."))):
        return "embedding"
    part = part_in_block(path)
    return "attention" if part == "attn" else part


def _nbytes(tensor: Tensor) -> int:
    """Bytes in memory; for an expanded tensor those of its storage."""
    nbytes = tensor.numel() * tensor.element_size()
    in_storage = not tensor.is_meta and tensor.layout is torch.strided
    return min(nbytes, tensor.untyped_storage().nbytes()) if in_storage else nbytes


def plain_parts(tensor: Tensor) -> list[Tensor]:
    """The plain tensors that a quantised one is made of; otherwise the tensor itself."""
    if not callable(flatten := getattr(tensor, "__tensor_flatten__", None)):
        return [tensor.detach()]
    names, _ = flatten()
    return [part for name in names for part in plain_parts(getattr(tensor, name))]
