"""The blocks that a model is a stack of, and the heavy parts inside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from learnscope.names import resolve


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of the model's stacks by their names, none inside another; without any, children of a Sequential."""
    layers = {found.layer for name, _ in model.named_parameters() if (found := resolve(name)).recognised}
    blocks: dict[str, nn.Module] = {}
    taken: set[str] = set()
    for path, module in model.named_modules():
        clean = resolve(f"{path}.weight" if path else "weight").clean.removesuffix(".weight")
        inside = any(path.startswith(f"{block}.") for block in blocks)
        if path and clean in layers and clean not in taken and not inside:
            blocks[path] = module
            taken.add(clean)
    if blocks:
        return blocks
    outer = next(((path, m) for path, m in model.named_modules() if isinstance(m, nn.Sequential)), None)
    if outer is None:
        return {}
    prefix = f"{outer[0]}." if outer[0] else ""
    return {
        f"{prefix}{name}": child for name, child in outer[1].named_children() if any(True for _ in child.parameters())
    }


def find_inner(name: str, block: nn.Module) -> dict[str, nn.Module]:
    """The children of a block that hold matrices: those that run before a changed one give what they gave."""
    heavy = [
        (f"{name}.{child}", module)
        for child, module in block.named_children()
        if any(p.ndim > 1 for p in module.parameters()) and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    ]
    return dict(heavy) if len(heavy) > 1 else {}


KNOWN = frozenset({"bert", "gpt2", "llama", "qwen2", "qwen3", "vit"})
"""Families of transformers whose blocks are known to leave nothing behind that others read."""


def known_blocks(model: nn.Module, blocks: Iterable[nn.Module]) -> bool:
    """Whether these are blocks of such a family as transformers wrote them: not subclassed, not patched, no hooks."""
    config: Any = getattr(model, "config", None)
    family = getattr(config, "model_type", None)
    if family not in KNOWN:
        return False
    home = f"transformers.models.{family}."
    return all(
        type(part).__module__.startswith((home, "transformers.", "torch.nn."))
        and "forward" not in vars(part)
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for block in blocks
        for part in [block, *block.modules()]
    ) and all(type(block).__module__.startswith(home) for block in blocks)
