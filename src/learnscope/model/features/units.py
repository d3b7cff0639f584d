"""Which dimension of a tensor holds its units, and which of its positions are padding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from learnscope.model.features.activation_functions import chunk_of, function_name

_CONVOLUTION = re.compile(r"conv(?:_transpose)?([123])d")
_SECOND = frozenset({"batch_norm", "group_norm", "instance_norm"})
_LAST = frozenset({"linear", "bilinear", "embedding", "embedding_bag"})
_ARITHMETIC = ("add", "sub", "mul", "div", "truediv", "pow")
_SAME_DIMENSION = frozenset({
    *_ARITHMETIC, *(f"i{name}" for name in _ARITHMETIC), *(f"r{name}" for name in _ARITHMETIC),
    "abs", "alpha_dropout", "bfloat16", "cat", "clamp", "clamp_max", "clamp_min", "clip", "clone", "concat",
    "contiguous", "detach", "double", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout",
    "float", "glu", "half", "interpolate", "layer_norm", "maximum", "minimum", "neg", "pad", "rms_norm", "square",
    "to", "type_as",
})  # fmt: skip
"""Functions that leave the units in the same dimension."""


class UnitDimensions:
    """The unit dimension of each tensor in a forward, by the function that produced it.

    Convolutions and batch, group and instance norms put channels before the spatial dimensions; linear maps,
    embeddings and norms over one dimension put features last. Arithmetic, pooling, dropout and activations
    keep the dimension of their input. For a tensor from another source it is dimension 1 if the tensor has 4
    or 5 dimensions, as a map, and otherwise the last.
    """

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()

    def of(self, tensor: Tensor) -> int:
        dim: int | None = self._known.get(tensor)
        if dim is not None and dim < tensor.ndim:
            return dim
        return 1 if tensor.ndim in (4, 5) else tensor.ndim - 1

    def inherit(self, source: Tensor, result: Tensor) -> None:
        if source is not result and source.ndim == result.ndim and source in self._known:
            self._known[result] = self._known[source]

    def note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Remember the unit dimension of the result of a call of torch's function `name`."""
        if not isinstance(result, Tensor) or not result.ndim:
            return
        convolution = _CONVOLUTION.fullmatch(name)
        plain = name.strip("_")
        over = args[1] if len(args) > 1 else kwargs.get("normalized_shape", ())  # of a norm
        if convolution:
            self._mark(result, result.ndim - 1 - int(convolution[1]))
        elif name in _SECOND:
            self._mark(result, 1)
        elif name in _LAST or (name in ("layer_norm", "rms_norm") and (isinstance(over, int) or len(over) == 1)):
            self._mark(result, result.ndim - 1)
        elif plain in _SAME_DIMENSION or "pool" in plain or function_name(plain):
            for source in _tensors(args, kwargs):
                self.inherit(source, result)
                if result in self._known:
                    break

    def _mark(self, tensor: Tensor, dim: int) -> None:
        if not isinstance(tensor, nn.Parameter):
            self._known[tensor] = max(dim, 0)


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, Tensor))


@dataclass(frozen=True, slots=True)
class Padding:
    """The positions of a batch that `attention_mask` keeps."""

    shape: tuple[int, int]
    positions: Tensor
    """Indices among the positions of all examples, concatenated."""

    @classmethod
    def of(cls, mask: Any) -> Padding | None:
        """None if there is no mask [B, T], or no padding."""
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            return None
        positions = mask.reshape(-1).nonzero().squeeze(1)
        return None if len(positions) == mask.numel() else cls((mask.shape[0], mask.shape[1]), positions)

    def rows(self, tensor: Tensor, dim: int) -> Tensor | None:
        """The positions that count, if the tensor has positions beside its units: [B, T, ...] or [B·T, F]."""
        if tuple(tensor.shape[:2]) == self.shape and dim >= 2:
            return self.positions
        flat = tensor.ndim == 2 and tensor.shape[0] == self.shape[0] * self.shape[1] and self.shape[1] > 1
        return self.positions if flat and dim == 1 else None


def pieces(tensor: Tensor, dim: int, rows: Tensor | None) -> Iterator[Tensor]:
    """[inputs, units] in parts, so that the tensor is not copied as a whole."""
    if tensor.ndim == 1:
        tensor, dim = tensor.unsqueeze(0), 1
    units_last = tensor.movedim(dim, -1)
    if rows is not None and tensor.ndim >= 3:
        units_last = units_last.flatten(0, 1)
    n = len(units_last) if rows is None else len(rows)
    if not n or not tensor.numel():
        return
    per = max(1, chunk_of(tensor) // max(1, units_last[0].numel()))
    for start in range(0, n, per):
        stop = min(start + per, n)
        part = units_last[start:stop] if rows is None else units_last.index_select(0, rows[start:stop])
        yield part.reshape(-1, part.shape[-1])
