"""How many bytes a model takes with its units at given bits: the same count as in a packed file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantise import Bits, checked
from learnscope.model.bits.quantised_units import QuantisedTensor, Unit, find_units
from learnscope.tensor.bits.packing import packed_length
from learnscope.tensor.bits.quantize import HALF_BITS, Scheme


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes and effective bits of a configuration, tied weights counted once.

    original_bytes: parameters and persistent buffers as they are stored.
    packed_bytes: the same with the units packed: codes, scales and zero points.
    block_bits: bits per entry of the units in blocks, scales and zero points included; of all units in a model
        without blocks.
    model_bits: 8 · packed_bytes / number of parameters.
    compression: original_bytes / packed_bytes.
    by_unit: packed bytes of each unit.
    """

    original_bytes: int
    packed_bytes: int
    block_bits: float
    model_bits: float
    compression: float
    by_unit: dict[str, int] = field(repr=False)


def ledger(model: nn.Module, bits: Bits, scheme: Scheme | None = None, units: Sequence[Unit] | None = None) -> Ledger:
    """The size of `model` with its units at `bits`; computed from shapes, no weight is read."""
    scheme = scheme or Scheme()
    known = find_units(model, embeddings=True) if units is None else list(units)
    chosen = checked(bits, known)
    stored = dict(stored_tensors(model))
    original = sum(tensor.nbytes for tensor in stored.values())
    entries = sum(p.numel() for p in model.parameters())
    by_unit: dict[str, int] = {}
    packed = original
    block_bits, block_entries = 0, 0
    blocks = any(unit.index is not None for unit in known)
    for unit in known:
        unit_bytes = 0
        for tensor in unit.tensors:
            dtype = stored[tensor.name].dtype
            unit_bytes += sum(packed_parts(tensor, dtype, chosen.get(unit.name), scheme).values())
            if unit.index is not None or not blocks:
                block_bits += _exact_bits(tensor, dtype, chosen.get(unit.name), scheme)
                block_entries += tensor.numel
        by_unit[unit.name] = unit_bytes
        packed += unit_bytes - sum(stored[tensor.name].nbytes for tensor in unit.tensors)
    nan = float("nan")
    return Ledger(
        original_bytes=original,
        packed_bytes=packed,
        block_bits=block_bits / block_entries if block_entries else nan,
        model_bits=8 * packed / entries if entries else nan,
        compression=original / packed if packed else nan,
        by_unit=by_unit,
    )


def packed_parts(tensor: QuantisedTensor, dtype: torch.dtype, bits: int | None, scheme: Scheme) -> dict[str, int]:
    """Bytes of each part of a weight in a packed file: "codes", "scale", "zero"; "half"; or "whole"."""
    if bits is None or bits > HALF_BITS:
        return {"whole": tensor.numel * dtype.itemsize}
    if bits == HALF_BITS:
        return {"half": tensor.numel * 2}
    rows, groups = scheme.scale_shape(*tensor.matrix_shape)
    parts = {"codes": packed_length(tensor.numel, bits), "scale": rows * groups * scheme.scale_dtype.itemsize}
    return parts if scheme.is_symmetric(bits) else parts | {"zero": packed_length(rows * groups, bits)}


def stored_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers, each once under its first name."""
    seen: set[int] = set()
    for name, parameter in model.named_parameters():
        seen.add(id(parameter))
        yield name, parameter
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name in module._non_persistent_buffers_set or id(buffer) in seen:
                continue
            seen.add(id(buffer))
            yield f"{path}.{name}" if path else name, buffer


def _exact_bits(tensor: QuantisedTensor, dtype: torch.dtype, bits: int | None, scheme: Scheme) -> int:
    """Bits of a weight, without the padding of the last byte."""
    if bits is None or bits >= HALF_BITS:
        return 8 * sum(packed_parts(tensor, dtype, bits, scheme).values())
    rows, groups = scheme.scale_shape(*tensor.matrix_shape)
    per_scale = 8 * scheme.scale_dtype.itemsize + (0 if scheme.is_symmetric(bits) else bits)
    return tensor.numel * bits + rows * groups * per_scale
