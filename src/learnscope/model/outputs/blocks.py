"""The blocks that a model is a stack of, and the heavy parts inside them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from learnscope.names import clean_path, resolve


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of the model's stacks by name, none inside another; if there are none, children of a Sequential."""
    layers = {resolve(name).layer for name, _ in model.named_parameters() if resolve(name).recognised}
    blocks: dict[str, nn.Module] = {}
    taken: set[str] = set()
    for path, module in model.named_modules():
        clean = clean_path(path)
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
    """The children of a block that hold matrices: the outputs of those before a changed one can be reused."""
    heavy = [
        (f"{name}.{child}", module)
        for child, module in block.named_children()
        if any(p.ndim > 1 for p in module.parameters()) and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    ]
    return dict(heavy) if len(heavy) > 1 else {}


KNOWN = frozenset({"bert", "gpt2", "llama", "qwen2", "qwen3", "vit"})
"""Model types of transformers whose blocks are known to leave no state behind that other blocks read."""


def known_blocks(model: nn.Module, blocks: Iterable[nn.Module]) -> bool:
    """Whether these are unmodified blocks of such a model type: not subclassed, not patched, without hooks."""
    family = getattr(getattr(model, "config", None), "model_type", None)
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
