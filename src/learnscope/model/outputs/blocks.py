"""The blocks of a model, one after the other, and their parts."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from learnscope.model.outputs.activations import is_own_forward
from learnscope.names import clean_path, resolve

STATELESS = frozenset({"bert", "gpt2", "llama", "qwen2", "qwen3", "vit"})
"""Model types of transformers whose blocks leave no state behind that other blocks read."""


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of the model's stacks by name, none inside another; if there are none, children of a Sequential."""
    layers = {resolve(name).layer for name, _ in model.named_parameters() if resolve(name).recognised}
    blocks: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        nested = path.startswith(tuple(f"{block}." for block in blocks))
        if path and clean_path(path) in layers and not nested:
            layers.remove(clean_path(path))  # each once
            blocks[path] = module
    sequential = next(((path, m) for path, m in model.named_modules() if isinstance(m, nn.Sequential)), None)
    if blocks or sequential is None:
        return blocks
    prefix = f"{sequential[0]}." if sequential[0] else ""
    children = sequential[1].named_children()
    return {f"{prefix}{name}": child for name, child in children if any(True for _ in child.parameters())}


def find_inner(name: str, block: nn.Module) -> dict[str, nn.Module]:
    """The children of a block that hold matrices: the outputs of those before a changed one can be reused."""
    heavy = {
        f"{name}.{child}": module
        for child, module in block.named_children()
        if any(p.ndim > 1 for p in module.parameters()) and not isinstance(module, nn.ModuleList | nn.ModuleDict)
    }
    return heavy if len(heavy) > 1 else {}


def are_stateless(model: nn.Module, blocks: Iterable[nn.Module]) -> bool:
    """Whether these are unmodified blocks of such a model type: not subclassed, not patched, without hooks."""
    family = getattr(getattr(model, "config", None), "model_type", None)
    home = f"transformers.models.{family}."
    return family in STATELESS and all(
        type(block).__module__.startswith(home)
        and type(part).__module__.startswith(("transformers.", "torch.nn."))
        and is_own_forward(part)
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for block in blocks
        for part in block.modules()
    )
