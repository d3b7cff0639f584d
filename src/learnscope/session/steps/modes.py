"""Modules that compute something else in training than in evaluation, and the mode that they are in."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from learnscope.task import unwrap

LOOKED_AT = 16
"""Modules whose flags are read at every step, spread over the model."""
NAMED = 6


@dataclass(frozen=True, slots=True)
class Moded:
    """A module whose mode matters, and the module that contains it."""

    name: str
    module: nn.Module
    parent: nn.Module


def is_moded(module: nn.Module) -> bool:
    """Whether it is a batch norm or a dropout, or drops entries itself."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, _BatchNorm) or (isinstance(module, nn.MultiheadAttention) and module.dropout > 0)


def moded_modules(model: nn.Module) -> list[Moded]:
    """All modules of a model whose mode matters."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    return [
        Moded(name, module, modules.get(name.rpartition(".")[0], module))
        for name, module in modules.items()
        if is_moded(module)
    ]


def trained_modules(model: nn.Module) -> list[Moded]:
    """Those of a part of the model that is being trained.

    A module with parameters counts if one of them is trained; one without, if trained parameters stand before it and
    after it, in the order in which the model lists its modules. So nothing of a frozen backbone counts.
    """
    order = [(name, any(p.requires_grad for p in m.parameters(recurse=False))) for name, m in model.named_modules()]
    places = {name: place for place, (name, _) in enumerate(order)}
    trained = [place for place, (_, trains) in enumerate(order) if trains]
    found = []
    for moded in moded_modules(model):
        place = places[moded.name]
        if next(moded.module.parameters(recurse=False), None) is not None:
            counts = any(p.requires_grad for p in moded.module.parameters(recurse=False))
        else:
            counts = bool(trained) and trained[0] < place < trained[-1]
        found += [moded] if counts else []
    return found


class Modes:
    """Reads the modes of a model's modules.

    A batch norm in eval mode inside a module in training mode was put there by itself, on purpose. What is looked for
    is a whole part of the model that was left in eval mode.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.refresh()

    def refresh(self) -> None:
        """Look for the modules anew: some may have been frozen, or added."""
        self._trained = trained_modules(self._model)
        few = self._trained[:: max(1, -(-len(self._trained) // LOOKED_AT))]
        self.few = [(each.module, each.parent) for each in few]
        """Those that are looked at at every step, each with the module that contains it."""

    def names_in_eval(self) -> list[str]:
        """The first few of all that are."""
        left = (each.name for each in self._trained if not each.module.training and not each.parent.training)
        return [name for name, _ in zip(left, range(NAMED), strict=False)]


def watch_evaluations(model: nn.Module, seen: Callable[[], object]) -> Callable[[], None] | None:
    """Call `seen` for each forward without gradients of a model with a dropout or batch norm in training mode.

    Returns what ends it; None for a model whose forwards cannot be seen: it is compiled already.
    """
    bare = unwrap(model)
    if hasattr(model, "_orig_mod") or getattr(bare, "_compiled_call_impl", None) is not None:
        return None
    moded = [each.module for each in moded_modules(bare)]
    if not moded:  # no mode matters, and a hook would cost its share of every forward
        return _nothing
    handle = bare.register_forward_pre_hook(_BeforeForward(bare, moded, seen))
    return handle.remove


def _nothing() -> None:
    pass


class _BeforeForward:
    """The hook on the model. In a copied or pickled model it does nothing, and needs no learnscope to be loaded."""

    def __init__(self, model: nn.Module, moded: Sequence[nn.Module], seen: Callable[[], object]) -> None:
        self._model, self._moded, self._seen = weakref.ref(model), list(moded), seen

    def __call__(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        # a compiled forward must not depend on what is counted
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if module is self._model() and any(each.training for each in self._moded):
            self._seen()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")
