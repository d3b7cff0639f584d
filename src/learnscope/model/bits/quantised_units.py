"""The units that are quantised together, attention and MLP of every block, and the input dimensions of weights.

Never quantised: norms, biases, routers of experts (routing to another expert is more than a rounding error) and the
factors of adapters; embeddings, heads and everything else outside of blocks only on request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from learnscope.names import ROOT, clean_path, resolve

Part = Literal["attn", "mlp", "embedding", "head", "other"]

_ATTENTION = re.compile(r"\w*(?:attn|attention)\w*|[qkvo]_proj|qkv|[qkv]_lin", re.IGNORECASE)
_MLP = re.compile(
    r"\w*(?:mlp|ffn|feed_?forward|densereludense|expert|moe)\w*|ff|fc\d?|linear[123]|intermediate|output|w[123]"
    r"|(?:gate|up|down|gate_up)_proj",
    re.IGNORECASE,
)
_HEAD = re.compile(r"\w*head|classifier|score|qa_outputs|cls|fc", re.IGNORECASE)
_EXPERTS = re.compile(r"\w*(?:expert|moe)\w*", re.IGNORECASE)


class UnitsError(ValueError):
    """Unknown units, or bits that do not fit them; the message says which and what is possible."""


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """A parameter as a matrix of output channels by input features.

    name: as `named_parameters()` gives it. module: path of the module that owns it (the first, if it is tied).
    in_dims: its input dimensions: (1,) of a Linear, (0,) of GPT-2's Conv1D, (1, 2, 3) of a Conv2d.
    """

    name: str
    module: str
    in_dims: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        inputs = math.prod(self.shape[dim] for dim in self.in_dims)
        return math.prod(size for dim, size in enumerate(self.shape) if dim not in self.in_dims), inputs

    @property
    def _order(self) -> tuple[int, ...]:
        return (*(dim for dim in range(len(self.shape)) if dim not in self.in_dims), *self.in_dims)

    def as_matrix(self, tensor: Tensor) -> Tensor:
        """[out, in]; no copy if the memory is in that order."""
        return tensor.permute(self._order).reshape(self.matrix_shape)

    def as_stored(self, matrix: Tensor) -> Tensor:
        """The inverse of `as_matrix`: the parameter's own shape."""
        order = self._order
        back = sorted(range(len(order)), key=order.__getitem__)
        return matrix.reshape([self.shape[dim] for dim in order]).permute(back).contiguous()


@dataclass(frozen=True, slots=True)
class Unit:
    """Weights that get the same number of bits.

    layer: path of the block, or of the module outside of blocks. index: number of the block, counted through the
    whole model (T5's decoder continues after its encoder); None outside of blocks.
    """

    name: str
    layer: str
    index: int | None
    part: Part
    tensors: tuple[QuantisedTensor, ...]

    @property
    def numel(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)


def find_units(model: nn.Module, *, embeddings: bool = False) -> list[Unit]:
    """The attention and the MLP of every block, the rest of a block as "other"; each weight once, in model order.

    In a model without blocks every module with a weight is a unit. `embeddings` adds the weights outside of blocks:
    embeddings, heads, poolers, stems. A head that is tied to the embedding counts as the embedding.
    """
    weights = list(_weights(model, embeddings))
    blocks = {name.layer for tensor, embeds in weights if (name := resolve(tensor.name)).recognised and not embeds}
    grouped: dict[tuple[str, Part], list[QuantisedTensor]] = {}
    for tensor, embeds in weights:
        name = resolve(tensor.name)
        layer = clean_path(tensor.module) or ROOT
        part: Part = "other"
        if name.recognised and not embeds:
            layer, part = name.layer, part_in_block(name.clean.removeprefix(name.layer))
        elif blocks and not embeddings:
            continue
        elif embeds:
            part = "embedding"
        elif blocks and is_in_head(name.clean):
            part = "head"
        grouped.setdefault((layer, part), []).append(tensor)
    if not grouped:
        raise UnitsError(
            f"{type(model).__name__} has no weights that could be quantised: floating-point weights of Linear, Conv, "
            "Conv1D, attention, recurrent or expert modules are needed"
        )
    numbers = {layer: n for n, layer in enumerate(dict.fromkeys(layer for layer, _ in grouped if layer in blocks))}
    units = []
    for (layer, part), tensors in grouped.items():
        undivided = layer not in blocks or {other for at, other in grouped if at == layer} == {"other"}
        units.append(Unit(layer if undivided else f"{layer}.{part}", layer, numbers.get(layer), part, tuple(tensors)))
    return units


def _weights(model: nn.Module, embeddings: bool) -> Iterator[tuple[QuantisedTensor, bool]]:
    """Every weight that can be quantised, and whether it is an embedding; tied weights under their first name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    modules = dict(model.named_modules())
    for path, module in modules.items():
        embeds = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        above, _, own = path.rpartition(".")
        gates = own in ("gate", "shared_expert_gate") and hasattr(modules.get(above), "experts")
        if gates or "router" in path.split(".") or (embeds and not embeddings):
            continue
        for parameter, in_dims in _own_weights(path, module):
            name = names.get(id(parameter))
            if name is None or not parameter.is_floating_point():
                continue
            if resolve(name).adapter in (None, "modules_to_save"):
                del names[id(parameter)]  # each weight once
                yield QuantisedTensor(name, path, in_dims, tuple(parameter.shape)), embeds


def _own_weights(path: str, module: nn.Module) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """The parameters of this module that are weights, with their input dimensions."""
    parameters = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    in_dims: dict[str, tuple[int, ...]]
    if isinstance(module, nn.Linear | nn.Embedding | nn.EmbeddingBag):
        in_dims = {"weight": (1,)}
    elif is_conv1d(module):
        in_dims = {"weight": (0,)}
    elif isinstance(module, _ConvNd):
        spatial = tuple(range(2, 2 + len(module.kernel_size)))
        in_dims = {"weight": (0 if isinstance(module, _ConvTransposeNd) else 1, *spatial)}
    elif isinstance(module, nn.MultiheadAttention):
        in_dims = dict.fromkeys(("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"), (1,))
    elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
        in_dims = {name: (1,) for name in parameters if name.startswith("weight")}
    elif isinstance(module, nn.Bilinear):
        in_dims = {"weight": (1, 2)}
    else:
        in_dims = _fused_experts(path, module, parameters)
    yield from ((parameters[name], dims) for name, dims in in_dims.items() if name in parameters)


def is_conv1d(module: nn.Module) -> bool:
    """GPT-2's Conv1D, a linear map whose weight is stored (in, out); found by name, so transformers is not needed."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(module).__mro__
    )


def _fused_experts(path: str, module: nn.Module, parameters: dict[str, nn.Parameter]) -> dict[str, tuple[int, ...]]:
    """All experts in one parameter of three dimensions: [expert, out, in], or [expert, in, out] if it is transposed."""
    if not (_EXPERTS.fullmatch(type(module).__name__) or any(map(_EXPERTS.fullmatch, path.split(".")))):
        return {}
    transposed = getattr(module, "is_transposed", None)
    if not isinstance(transposed, bool) and {"gate_up_proj", "down_proj"} <= parameters.keys():
        up, down = parameters["gate_up_proj"].shape, parameters["down_proj"].shape
        transposed = up[1] == down[2] and up[2] != down[1]
    return {name: (1 if transposed is True else 2,) for name, p in parameters.items() if p.ndim == 3}


def part_in_block(path: str) -> Part:
    """The part of a block that a path belongs to, by the first name in it that is known: "attn", "mlp" or "other"."""
    for piece in path.split("."):
        if _ATTENTION.fullmatch(piece):
            return "attn"
        if _MLP.fullmatch(piece):
            return "mlp"
    return "other"


def is_in_head(path: str) -> bool:
    """Whether a name in a path is that of a head."""
    return any(map(_HEAD.fullmatch, path.split(".")))
