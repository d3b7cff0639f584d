"""How many bytes a model takes with its units at given bits: the same count as in a packed file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantise import Bits, checked_widths
from learnscope.model.bits.quantised_units import QuantisedTensor, Unit, find_units
from learnscope.tensor.bits.quantize import HALF_BITS, Scheme


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes and effective bits of a configuration, tied weights counted once."""

    original_bytes: int
    """Of parameters and persistent buffers as they are stored."""
    packed_bytes: int
    """The same with the units packed: codes, scales and zero points."""
    block_bits: float
    """Per entry of the units in blocks (of all units without blocks), scales and zero points included."""
    model_bits: float
    """8 · packed_bytes / number of parameters."""
    compression: float
    """original_bytes / packed_bytes."""
    by_unit: dict[str, int] = field(repr=False)
    """Packed bytes of each unit."""


@dataclass(frozen=True, slots=True)
class StoredSizes:
    """What a ledger needs of a model: looking it up takes longer than adding it up for a configuration."""

    tensors: dict[str, tuple[int, torch.dtype]]
    """Bytes and dtype of each of `stored_tensors`."""
    entries: int
    """Of all parameters."""

    @classmethod
    def of(cls, model: nn.Module) -> StoredSizes:
        tensors = {name: (tensor.nbytes, tensor.dtype) for name, tensor in stored_tensors(model).items()}
        return cls(tensors, sum(p.numel() for p in model.parameters()))


def ledger(
    model: nn.Module, bits: Bits, scheme: Scheme | None = None, units: Sequence[Unit] | None = None,
    sizes: StoredSizes | None = None,
) -> Ledger:  # fmt: skip
    """The size of `model` with its units at `bits`; computed from shapes, no weight is read. `sizes` are the model's,
    where they are known."""
    scheme = scheme or Scheme()
    units = find_units(model, embeddings=True) if units is None else units
    chosen = checked_widths(bits, units)
    sizes = sizes or StoredSizes.of(model)
    stored, entries = sizes.tensors, sizes.entries
    original = packed = sum(nbytes for nbytes, _ in stored.values())
    by_unit = dict.fromkeys((unit.name for unit in units), 0)
    block_bits, block_entries = 0, 0
    has_blocks = any(unit.index is not None for unit in units)
    for unit in units:
        for tensor in unit.tensors:
            nbytes, dtype = stored[tensor.name]
            parts = part_bits(tensor, dtype, chosen.get(unit.name), scheme).values()
            by_unit[unit.name] += sum(-(-part // 8) for part in parts)
            packed -= nbytes
            if unit.index is not None or not has_blocks:
                block_bits += sum(parts)
                block_entries += tensor.numel
        packed += by_unit[unit.name]
    nan = float("nan")
    return Ledger(
        original_bytes=original,
        packed_bytes=packed,
        block_bits=block_bits / block_entries if block_entries else nan,
        model_bits=8 * packed / entries if entries else nan,
        compression=original / packed if packed else nan,
        by_unit=by_unit,
    )


def part_bits(tensor: QuantisedTensor, dtype: torch.dtype, bits: int | None, scheme: Scheme) -> dict[str, int]:
    """Bits of each part of a weight in a packed file, in which every part is filled up to a full byte."""
    if bits is None or bits > HALF_BITS:
        return {"whole": tensor.numel * 8 * dtype.itemsize}
    if bits == HALF_BITS:
        return {"half": tensor.numel * HALF_BITS}
    scales = math.prod(scheme.scale_shape(*tensor.matrix_shape))
    parts = {"codes": tensor.numel * bits, "scale": scales * 8 * scheme.scale_dtype.itemsize}
    if not scheme.is_symmetric(bits):
        parts["zero"] = scales * bits
    if scheme.input_scales:
        parts["inputs"] = tensor.matrix_shape[1] * 8 * scheme.scale_dtype.itemsize
    return parts


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each once under its first name."""
    buffers = [
        (f"{path}.{name}" if path else name, buffer)
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    ]
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in [*model.named_parameters(), *buffers]:
        tensors.setdefault(id(tensor), (name, tensor))
    return dict(tensors.values())
