"""The units that are quantised together, attention and MLP of every block, and the input dimensions of weights.

Never quantised: norms, biases, routers of experts (routing to another expert is more than a rounding error) and the
factors of adapters; embeddings, heads and everything else outside of blocks only on request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
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
    blocks = {resolve(tensor.name).layer for tensor, kind in weights if _in_block(tensor, kind)}
    gathered: dict[tuple[str, Part], list[QuantisedTensor]] = {}
    for tensor, kind in weights:
        inside = bool(blocks) and _in_block(tensor, kind)
        if blocks and not inside and not embeddings:
            continue
        layer = resolve(tensor.name).layer if inside else clean_path(tensor.module) or ROOT
        part = _part(tensor.name, kind, inside) if blocks or kind else "other"
        gathered.setdefault((layer, part), []).append(tensor)
    if not gathered:
        raise UnitsError(
            f"{type(model).__name__} has no weights that could be quantised: floating-point weights of Linear, Conv, "
            "Conv1D, attention, recurrent or expert modules are needed"
        )
    numbers = {layer: n for n, layer in enumerate(dict.fromkeys(layer for layer, _ in gathered if layer in blocks))}
    parts_of: dict[str, set[Part]] = {}
    for layer, part in gathered:
        parts_of.setdefault(layer, set()).add(part)
    units = []
    for (layer, part), tensors in gathered.items():
        alone = layer not in blocks or parts_of[layer] == {"other"}
        name = layer if alone else f"{layer}.{part}"
        units.append(Unit(name, layer, numbers.get(layer), part, tuple(tensors)))
    return units


def number_of_layers(units: Sequence[Unit]) -> int:
    return len({unit.index for unit in units if unit.index is not None})


def _in_block(tensor: QuantisedTensor, kind: str) -> bool:
    return resolve(tensor.name).recognised and kind != "embedding"


def _weights(model: nn.Module, embeddings: bool) -> Iterator[tuple[QuantisedTensor, str]]:
    """Every weight that can be quantised and its kind, "embedding" or ""; tied weights under their first name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    modules = dict(model.named_modules())
    taken: set[int] = set()
    for path, module in modules.items():
        if _is_router(path, modules):
            continue
        for parameter, in_dims in _own_weights(path, module):
            kind = "embedding" if isinstance(module, nn.Embedding | nn.EmbeddingBag) else ""
            name = names[id(parameter)]
            adapter = resolve(name).adapter
            if id(parameter) in taken or not parameter.is_floating_point():
                continue
            if adapter not in (None, "modules_to_save") or (kind and not embeddings):
                continue
            taken.add(id(parameter))
            yield QuantisedTensor(name, path, in_dims, tuple(parameter.shape)), kind


def _own_weights(path: str, module: nn.Module) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """The parameters of this module that are weights, with their input dimensions."""
    own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    wanted: dict[str, tuple[int, ...]]
    if isinstance(module, nn.Linear | nn.Embedding | nn.EmbeddingBag):
        wanted = {"weight": (1,)}
    elif is_conv1d(module):
        wanted = {"weight": (0,)}
    elif isinstance(module, _ConvNd):
        spatial = tuple(range(2, 2 + len(module.kernel_size)))
        wanted = {"weight": (0 if isinstance(module, _ConvTransposeNd) else 1, *spatial)}
    elif isinstance(module, nn.MultiheadAttention):
        wanted = dict.fromkeys(("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"), (1,))
    elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
        wanted = {name: (1,) for name in own if name.startswith("weight")}
    elif isinstance(module, nn.Bilinear):
        wanted = {"weight": (1, 2)}
    else:
        wanted = _fused_experts(path, module, own)
    for name, in_dims in wanted.items():
        if name in own:
            yield own[name], in_dims


def is_conv1d(module: nn.Module) -> bool:
    """GPT-2's Conv1D, a linear map whose weight is stored (in, out); found by name, so transformers is not needed."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(module).__mro__
    )


def _fused_experts(path: str, module: nn.Module, own: dict[str, nn.Parameter]) -> dict[str, tuple[int, ...]]:
    """All experts in one parameter of three dimensions: [expert, out, in], or [expert, in, out] if it is transposed."""
    if not (_EXPERTS.fullmatch(type(module).__name__) or any(map(_EXPERTS.fullmatch, path.split(".")))):
        return {}
    return {name: (1 if _is_transposed(module, own) else 2,) for name, p in own.items() if p.ndim == 3}


def _is_transposed(module: nn.Module, own: dict[str, nn.Parameter]) -> bool:
    declared = getattr(module, "is_transposed", None)
    if isinstance(declared, bool):
        return declared
    up, down = own.get("gate_up_proj"), own.get("down_proj")
    if up is None or down is None:
        return False
    return up.shape[1] == down.shape[2] and up.shape[2] != down.shape[1]


def _is_router(path: str, modules: dict[str, nn.Module]) -> bool:
    parts = path.split(".")
    if "router" in parts:
        return True
    above = modules.get(".".join(parts[:-1]))
    return parts[-1] in ("gate", "shared_expert_gate") and above is not None and hasattr(above, "experts")


def part_in_block(path: str) -> Part:
    """The part of a block that a path belongs to, by the first name in it that tells: "attn", "mlp" or "other"."""
    for piece in path.split("."):
        if _ATTENTION.fullmatch(piece):
            return "attn"
        if _MLP.fullmatch(piece):
            return "mlp"
    return "other"


def is_in_head(path: str) -> bool:
    """Whether a name in a path is that of a head."""
    return any(map(_HEAD.fullmatch, path.split(".")))


def _part(name: str, kind: str, in_block: bool) -> Part:
    resolved = resolve(name)
    if in_block:
        return part_in_block(resolved.clean.removeprefix(resolved.layer))
    return "embedding" if kind else "head" if is_in_head(resolved.clean) else "other"
