"""A model in a file with its units in few bits: as small as the ledger says, and the same outputs when it is loaded.

A safetensors file. Its metadata has one JSON under `learnscope`: format, scheme, bits of each unit, and for each tensor
its shape, dtype and what is stored of it. Its tensors, by the name of each parameter or buffer:

| key | what |
|---|---|
| `codes/<name>` | uint8: codes of the [out, in] matrix, see `tensor.bits.packing`; symmetric ones plus 2^(b-1) |
| `scale/<name>` | [out, groups], in the scheme's dtype |
| `zero/<name>` | uint8: zero points, packed like codes; only if asymmetric |
| `inputs/<name>` | [in], in the scheme's dtype: factors of the columns; only if the scheme has input scales |
| `half/<name>` | the [out, in] matrix in float16 or bfloat16 |
| `whole/<name>` | as it is |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.ledger import part_bits, stored_tensors
from learnscope.model.bits.quantise import Bits, checked_widths, is_switchable, naming, readable
from learnscope.model.bits.quantised_units import QuantisedTensor, find_units
from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.lazy import SafetensorsFile, check_storable, dtype_name, on_host
from learnscope.model.weights.sealed import SealedFormat
from learnscope.tensor.bits.packing import pack, unpack
from learnscope.tensor.bits.quantize import HALF_BITS, Quantised, Scheme, dequantize


class PackedError(CheckpointError):
    """A packed file that cannot be written, read or loaded; the message says why and what to do."""


FORMAT = SealedFormat(
    "packed", 1, "packed model", "those are made by save_packed", "save it again", "load", PackedError
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PackedInfo:
    """`tensor_bytes` is what the ledger counts; `file_bytes` is more by the header."""

    path: Path
    tensor_bytes: int
    file_bytes: int


def save_packed(
    model: nn.Module,
    bits: Bits,
    scheme: Scheme | None,
    path: str | Path,
    copies: QuantisedCopies | None = None,
    *,
    ready: Mapping[str, Quantised] | None = None,
) -> PackedInfo:
    """Write `model` with its units as `bits` says, whole or not at all; the model stays as it is.

    `copies`: of this model, by any method; their scheme is that of the file. `ready`: codes and scales by the names of
    parameters, of these bits and this scheme, for which none are made.
    """
    path = Path(path)
    if copies is None:
        copies = QuantisedCopies(model, scheme or Scheme())
        copies.room = 0  # each is needed once
    scheme = copies.scheme
    if is_switchable(model):
        raise PackedError(
            f"{type(model).__name__} sets its own precision, by rules that a file cannot hold: save it by its own means"
        )
    units = find_units(model, embeddings=True)
    chosen = checked_widths(bits, units)
    stored = stored_tensors(model)
    check_storable(stored)
    weights = {tensor.name: tensor for unit in units for tensor in unit.tensors}
    widths = {tensor.name: chosen.get(unit.name) for unit in units for tensor in unit.tensors}
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        width, parts = widths.get(name), {"whole": tensor}
        if width is not None and width <= HALF_BITS:
            parts = _parts(weights[name], tensor, width, copies, (ready or {}).get(name))
        tensors |= {f"{part}/{name}": on_host(values) for part, values in parts.items()}
    FORMAT.write(path, described(stored, weights, widths, chosen, scheme), tensors)
    return PackedInfo(path, sum(tensor.nbytes for tensor in tensors.values()), path.stat().st_size)


def described(
    stored: Mapping[str, Tensor],
    weights: Mapping[str, QuantisedTensor],
    widths: Mapping[str, int | None],
    chosen: Bits,
    scheme: Scheme,
) -> dict[str, Any]:
    """The header, from shapes: scheme, bits by unit, and a row for each tensor."""
    table = []
    for name, tensor in stored.items():
        row: dict[str, Any] = {"name": name, "shape": list(tensor.shape), "dtype": dtype_name(tensor)}
        width = widths.get(name)
        if width is not None and width <= HALF_BITS:
            row |= {"bits": width, "in_dims": list(weights[name].in_dims)}
        table.append(row)
    about = asdict(scheme) | {"scale_dtype": str(scheme.scale_dtype).removeprefix("torch.")}
    if not scheme.input_scales:  # files without them are read by earlier versions too
        del about["input_scales"]
    if scheme.half == Scheme().half:
        del about["half"]
    return {"scheme": about, "bits": dict(chosen), "tensors": table}


def shapes_of_parts(
    stored: Mapping[str, Tensor],
    weights: Mapping[str, QuantisedTensor],
    widths: Mapping[str, int | None],
    scheme: Scheme,
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of every tensor in the file."""
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, tensor in stored.items():
        width = widths.get(name)
        if width is None or width > HALF_BITS:
            shapes[f"whole/{name}"] = tensor.dtype, tuple(tensor.shape)
            continue
        scales = scheme.scale_shape(*weights[name].matrix_shape)
        for part, size in part_bits(weights[name], tensor.dtype, width, scheme).items():
            if part == "half":
                shapes[f"half/{name}"] = torch.float16, weights[name].matrix_shape
            elif part == "scale":
                shapes[f"scale/{name}"] = scheme.scale_dtype, scales
            elif part == "inputs":
                shapes[f"inputs/{name}"] = scheme.scale_dtype, (weights[name].matrix_shape[1],)
            else:
                shapes[f"{part}/{name}"] = torch.uint8, (-(-size // 8),)
    return shapes


def load_packed(path: str | Path, model: nn.Module) -> None:
    """Give `model` the weights of a packed file; a file that does not fit, or is damaged, leaves it as it was."""
    with FORMAT.open(Path(path)) as file:
        header = FORMAT.header(file)
        FORMAT.check_seal(header, file)
        scheme = Scheme(**header["scheme"] | {"scale_dtype": getattr(torch, header["scheme"]["scale_dtype"])})
        model_tensors = stored_tensors(model)
        _check_fit(file, header["tensors"], model_tensors, scheme)
        with torch.no_grad():
            for row in header["tensors"]:
                model_tensors[row["name"]].copy_(_value(file, row, scheme))
    torch.clear_autocast_cache()


def _parts(
    weight: QuantisedTensor, parameter: Tensor, bits: int, copies: QuantisedCopies, ready: Quantised | None
) -> dict[str, Tensor]:
    with naming(weight.name):
        quantised = ready or copies.quantised(weight, readable(weight, parameter), bits)
    if quantised.scale is None:
        return {"half": quantised.codes}
    codes = quantised.codes if quantised.zero is not None else quantised.codes.to(torch.int16) + 2 ** (bits - 1)
    parts = {"codes": pack(codes, bits), "scale": quantised.scale}
    if quantised.zero is not None:
        parts["zero"] = pack(quantised.zero, bits)
    return parts if quantised.inputs is None else parts | {"inputs": quantised.inputs}


def _value(file: SafetensorsFile, row: Mapping[str, Any], scheme: Scheme) -> Tensor:
    """The tensor that a row of the header stands for."""
    name, bits = row["name"], row.get("bits")
    if bits is None:
        return file[f"whole/{name}"]
    weight = _weight(row)
    dtype = getattr(torch, row["dtype"])
    if bits == HALF_BITS:
        return weight.as_stored(file[f"half/{name}"].to(dtype))
    codes = unpack(file[f"codes/{name}"], bits, weight.numel).reshape(weight.matrix_shape)
    scale = file[f"scale/{name}"]
    if scheme.is_symmetric(bits):
        zero, codes = None, (codes.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)
    else:
        zero = unpack(file[f"zero/{name}"], bits, scale.numel()).reshape(scale.shape)
    inputs = file[f"inputs/{name}"] if scheme.input_scales else None
    return weight.as_stored(dequantize(Quantised(codes, scale, zero, bits, scheme, dtype, inputs)))


def _weight(row: Mapping[str, Any]) -> QuantisedTensor:
    return QuantisedTensor(row["name"], "", tuple(row["in_dims"]), tuple(row["shape"]))


def _check_fit(
    file: SafetensorsFile, table: Sequence[Mapping[str, Any]], model_tensors: Mapping[str, Tensor], scheme: Scheme
) -> None:
    """Refuse a model whose tensors are not those that were saved, and a file that lacks a part of one of them."""
    misfit = f"{file.path} does not fit this model"
    saved = {row["name"]: row for row in table}
    for name in [*saved, *model_tensors]:
        if not (name in saved and name in model_tensors):
            holder = "the model lacks" if name in saved else "the file lacks"
            raise PackedError(f"{misfit}: {holder} {name}. Build the model that was saved.")
    for name, tensor in model_tensors.items():
        if tensor.is_meta:
            raise PackedError(
                f"{name} is on the meta device: give the model memory first, model.to_empty(device='cpu')"
            )
        for what, actual in (("shape", list(tensor.shape)), ("dtype", dtype_name(tensor))):
            if saved[name][what] != actual:
                raise PackedError(
                    f"{misfit}: {name} has {what} {actual}, in the file {saved[name][what]}. "
                    "Build the model that was saved, in the same dtype."
                )
    for name, row in saved.items():
        bits = row.get("bits")
        for part in ("whole",) if bits is None else part_bits(_weight(row), model_tensors[name].dtype, bits, scheme):
            if f"{part}/{name}" not in file:
                raise FORMAT.damaged(file.path, f"{part}/{name} is not there")
