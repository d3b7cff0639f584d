"""A checkpoint judged weight by weight, without running it: what rounding does to every tensor, and the bytes.

Tensors are read from their files one after another, a piece of their channels at a time, so that a model that is larger
than the memory can be judged. No text is read and no output computed: how much a rounding error matters is not said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from learnscope.model.bits.ledger import part_bits, stored_tensors
from learnscope.model.bits.quantised_units import QuantisedTensor, find_units
from learnscope.posttrain.configuration import build, find_configuration
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.stored import files_of, named_as
from learnscope.reading.audit_numbers import size
from learnscope.reading.words import num
from learnscope.report.markdown import table
from learnscope.tensor.bits.quantize import HALF_BITS, QuantiseError, Scheme, checked_bits, dequantize, quantize

BITS = (8, 7, 6, 5, 4, 3, 2)
PIECE = 1 << 20
"""Entries that are rounded at once, about."""
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Place = tuple[Path, str]
"""A file, and the name of a tensor in it."""


@dataclass(frozen=True, slots=True)
class JudgedTensor:
    """`error` by bits: Σ(w − w′)² / Σw², w′ the rounded weight; none if there is a `reason`."""

    name: str
    part: str
    shape: tuple[int, ...]
    stored_bytes: int
    squares: float
    error: Mapping[int, float]
    packed_bytes: Mapping[int, int]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedWeights:
    """All tensors that can be rounded, and what is left as it is."""

    tensors: Sequence[JudgedTensor]
    other_bytes: int
    """Of norms, biases and all else that is not rounded."""
    scheme: Scheme
    bits: Sequence[int]

    @property
    def stored_bytes(self) -> int:
        return self.other_bytes + sum(tensor.stored_bytes for tensor in self.tensors)

    def packed_bytes(self, bits: int) -> int:
        """Of the whole model with every tensor at so many bits; one that cannot be rounded stays as it is."""
        return self.other_bytes + sum(each.packed_bytes.get(bits, each.stored_bytes) for each in self.tensors)

    def error(self, bits: int) -> float:
        """Of all tensors that could be rounded, as if they were one."""
        known = [tensor for tensor in self.tensors if bits in tensor.error]
        squares = math.fsum(tensor.squares for tensor in known)
        return math.fsum(t.error[bits] * t.squares for t in known) / squares if squares else math.nan

    def worst(self, bits: int) -> JudgedTensor | None:
        known = [tensor for tensor in self.tensors if bits in tensor.error]
        return max(known, key=lambda tensor: tensor.error[bits], default=None)

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "name": each.name, "part": each.part, "shape": list(each.shape), "stored_bytes": each.stored_bytes,
                "error": {str(bits): value for bits, value in each.error.items()},
                "packed_bytes": {str(bits): value for bits, value in each.packed_bytes.items()}, "reason": each.reason,
            }
            for each in self.tensors
        ]  # fmt: skip
        way = {name: getattr(self.scheme, name) for name in ("granularity", "group_size", "symmetric")}
        return {"schema": 1, "kind": "learnscope weights", "scheme": way, "other_bytes": self.other_bytes,
                "stored_bytes": self.stored_bytes, "tensors": rows}  # fmt: skip

    def in_words(self) -> str:
        """Two tables in Markdown: by bits, and by tensor."""
        rows = []
        for bits in self.bits:
            worst, whole = self.worst(bits), self.packed_bytes(bits)
            named = "" if worst is None else f"{worst.name} ({decibels(worst.error[bits])})"
            rows.append((f"{bits}", size(whole), num(self.stored_bytes / whole), decibels(self.error(bits)), named))
        head = ("bits", "size", "times smaller", "signal to rounding error", "worst tensor")
        each = [
            (t.name, "×".join(map(str, t.shape)), size(t.stored_bytes),
             *(decibels(t.error[bits]) if bits in t.error else t.reason or "" for bits in self.bits))
            for t in self.tensors
        ]  # fmt: skip
        columns = ("tensor", "shape", "stored", *(f"{bits} bits" for bits in self.bits))
        return f"{table(head, rows)}\n\n## Each tensor\n\n{table(columns, each)}\n"


def decibels(error: float) -> str:
    """Signal to rounding error, 10 log₁₀(Σw² / Σ(w − w′)²).

    >>> decibels(0.001), decibels(0.0)
    ('30.0 dB', 'exact')
    """
    return "n/a" if math.isnan(error) else "exact" if error == 0 else f"{-10 * math.log10(error):.1f} dB"


def judge_weights(
    path: Path, config_path: Path | None = None, *, bits: Sequence[int] = BITS, scheme: Scheme | None = None,
    embeddings: bool = True, show: Callable[[int, int], None] | None = None,
) -> JudgedWeights:  # fmt: skip
    """What rounding to each of `bits` does to every weight of a folder or a file of safetensors."""
    if wrong := [width for width in bits if checked_bits(width) > HALF_BITS]:
        raise PosttrainError(f"bits={wrong[0]}: 2 to 8 and 16 are possible")
    scheme, places = scheme or Scheme(), dict[int, Place]()
    stored = _headers(path, places)
    configuration = find_configuration(path, config_path, stored)
    with torch.device("meta"):  # names and shapes alone
        model = build(configuration)
    named = named_as(model, stored)
    units = find_units(model, embeddings=embeddings)
    tensors = [(unit.part, tensor) for unit in units for tensor in unit.tensors]
    for _, tensor in tensors:
        if tensor.name not in named or tuple(named[tensor.name].shape) != tensor.shape:
            raise PosttrainError(
                f"{path} has no {tensor.name} of the shape {list(tensor.shape)}, which its configuration "
                f"({configuration.where}) asks for: give the one that the weights were saved with (config_path=)"
            )
    whole = sum(named[name].nbytes for name in stored_tensors(model) if name in named)
    judged = []
    for number, (part, tensor) in enumerate(tensors):
        if show is not None:
            show(number, len(tensors))
        judged.append(_judged(tensor, part, named[tensor.name], places[id(named[tensor.name])], bits, scheme))
    return JudgedWeights(judged, whole - sum(each.stored_bytes for each in judged), scheme, tuple(bits))


def _headers(path: Path, places: dict[int, Place]) -> dict[str, Tensor]:
    """Names, shapes and precisions of all tensors, without values; `places` gets where each of them is, by its id."""
    files = [path] if path.is_file() else files_of(path) if path.is_dir() else []
    if not files or any(file.suffix != ".safetensors" for file in files):
        raise PosttrainError(
            f"{path}: weights are judged one by one from .safetensors files, and there are none; other files can only "
            "be read whole: save the model with save_pretrained"
        )
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (it is no dictionary)
                    part = opened.get_slice(name)
                    dtype = _DTYPES.get(part.get_dtype(), torch.uint8)
                    found[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
                    places[id(found[name])] = file, name
        except (SafetensorError, OSError) as error:
            raise PosttrainError(f"{file} is damaged ({error}): save it again, or take another copy of it") from None
    return found


def _judged(
    tensor: QuantisedTensor, part: str, stored: Tensor, place: Place, bits: Sequence[int], scheme: Scheme
) -> JudgedTensor:
    squares, errors = 0.0, dict.fromkeys(bits, 0.0)
    packed = {b: sum(-(-n // 8) for n in part_bits(tensor, stored.dtype, b, scheme).values()) for b in bits}
    try:
        if not stored.is_floating_point():
            raise QuantiseError("it is stored as whole numbers, which another package made")
        for piece in _pieces(tensor, place, scheme):
            squares += float(piece.double().square_().sum())
            for width in bits:
                rounded = dequantize(quantize(piece, width, scheme))
                errors[width] += float(rounded.double().sub_(piece).square_().sum())
    except QuantiseError as error:
        return JudgedTensor(tensor.name, part, tensor.shape, stored.nbytes, 0.0, {}, {}, str(error))
    shares = {width: error / squares if squares else 0.0 for width, error in errors.items()}
    return JudgedTensor(tensor.name, part, tensor.shape, stored.nbytes, squares, shares, packed)


def _pieces(tensor: QuantisedTensor, place: Place, scheme: Scheme) -> Iterator[Tensor]:
    """The weight as [out, in], some channels after another; whole if they share a scale, or are no rows or columns."""
    file, name = place
    outputs, inputs = tensor.matrix_shape
    apart = scheme.granularity != "tensor" and len(tensor.shape) == 2
    count = max(1, PIECE // max(inputs, 1)) if apart else max(outputs, 1)
    for begin in range(0, outputs, count):
        with safe_open(file, "pt") as opened:  # anew for each: what is mapped stays in memory until it is closed
            part = opened.get_slice(name)
            chosen = slice(begin, begin + count)
            if not apart:
                piece = tensor.as_matrix(opened.get_tensor(name)).clone()
            elif tensor.in_dims == (1,):
                piece = part[chosen].clone()
            else:
                piece = part[:, chosen].T.clone()
        yield piece
