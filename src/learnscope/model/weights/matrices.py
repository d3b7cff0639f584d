"""The weights of a model that are matrices, without the factors of adapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from learnscope.model.selection import SelectionError, select_parameters, spread
from learnscope.names import resolve

SAVED = "modules_to_save"
"""PEFT's trained copies of whole modules, which are not factors."""


@dataclass(frozen=True, slots=True)
class WeightMatrix:
    """A parameter as a matrix [first dimension, all others], or the reason why it has none."""

    scope: str
    """Its name without wrappers; with them if two parameters would have the same name."""
    values: Tensor
    reason: str | None = None


def weight_matrices(
    model: nn.Module, names: str | Iterable[str] | None, *, trained_only: bool, max_layers: int | None
) -> list[WeightMatrix]:
    """Parameters of two dimensions or more, of all `names` (as for `select_parameters`), each once and in order."""
    named = list(model.named_parameters())
    chosen = named if names is None else [named[place] for place in select_parameters(model, names)]
    matrices = [(name, p) for name, p in chosen if p.ndim > 1 and resolve(name).adapter in (None, SAVED)]
    trained = [(name, p) for name, p in matrices if p.requires_grad or not trained_only]
    if not trained:
        raise SelectionError(_no_matrices(model, names, len(matrices)))
    layers = set(spread((resolve(name).layer for name, _ in trained), max_layers))
    chosen = [(name, p) for name, p in trained if resolve(name).layer in layers]
    kernels = kernels_of(model)
    times = Counter(resolve(name).clean for name, _ in chosen)
    return [
        _matrix(name if times[resolve(name).clean] > 1 else resolve(name).clean, p, id(p) in kernels)
        for name, p in chosen
    ]


def kernels_of(model: nn.Module) -> set[int]:
    """Ids of the parameters of convolutions, whose kernels are matrices [out, in·k·…]."""
    return {id(p) for module in model.modules() if isinstance(module, _ConvNd) for p in module.parameters(False)}


def _matrix(scope: str, p: Tensor, is_kernel: bool) -> WeightMatrix:
    reason = None
    if not p.is_floating_point():
        reason = f"its entries are {str(p.dtype).removeprefix('torch.')}: a packed or quantised weight is no matrix yet"
    elif p.is_meta:
        reason = "it has no data: it is on the meta device"
    elif not p.numel():
        reason = "it has no entries"
    elif p.ndim > 2 and not is_kernel:
        reason = f"it has {p.ndim} dimensions and belongs to no convolution: which matrix it is, is not known"
    return WeightMatrix(scope, p if reason else p.detach().flatten(1), reason)


def _no_matrices(model: nn.Module, names: object, frozen: int) -> str:
    where = type(model).__name__ if names is None else f"{names!r} of {type(model).__name__}"
    if frozen:
        return (
            f"{where}: its {frozen} weight matrices are frozen. Pass trained_only=False to look at them all the same; "
            "what adapters add to them is measured by AdapterSpectrum"
        )
    return f"{where} has no weight of two dimensions or more (factors of adapters apart: AdapterSpectrum measures them)"
