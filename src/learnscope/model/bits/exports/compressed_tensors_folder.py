"""A folder in the format of compressed-tensors, written and read by that library; transformers and vLLM load it.

Linear: pack-quantized, 2 to 8 bits, by tensor, channel or group. Embeddings: naive-quantized, int8, because
transformers cannot load them packed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.exports.planning import Plan, Prepared, held_in_few_bits, library, refuse_other_parts
from learnscope.model.bits.exports.safetensors_size import safetensors_bytes
from learnscope.model.bits.exports.transformers_folder import (
    WEIGHTS_FILE,
    check_pretrained,
    configuration,
    linear_paths,
    load_folder,
    write_folder,
)
from learnscope.model.bits.torchao_export import ExportError
from learnscope.tensor.bits.quantize import Quantised

PACKED, PLAIN = "pack-quantized", "naive-quantized"


def prepare(plan: Plan, tokenizer: Any) -> Prepared:
    check_pretrained(plan.model, "compressed-tensors")
    refuse_other_parts(plan, "compressed-tensors")
    library("compressed_tensors")
    paths = {path: name for name in held_in_few_bits(plan) for path in _checked(plan, name)}
    tied = [name for name in dict.fromkeys(paths.values()) if len(plan.holders[name]) > 1]
    notes = tuple(f"{name} is tied: the format has no tied weights in few bits, so it is stored twice" for name in tied)
    shapes = {name: (t.dtype, tuple(t.shape)) for name, t in plan.stored.items() if name not in paths.values()}
    for path, name in paths.items():
        shapes |= {f"{path}.{part}": shape for part, shape in _shapes(plan, path, name)}
    metadata = {"format": "pt"}

    def write(folder: Path) -> None:
        tensors = {n: tensor.detach() for n, tensor in plan.stored.items() if n not in paths.values()}
        for path, name in paths.items():
            tensors |= {f"{path}.{part}": tensor for part, tensor in _compressed(plan, path, name).items()}
        config = configuration(plan.model, _quantisation(plan, paths) if paths else None, untied=bool(tied))
        write_folder(folder, plan, tensors, metadata, config, "compressed-tensors", tokenizer)

    by = "loaded by transformers, decompressed by compressed-tensors, and run"
    promised = safetensors_bytes(shapes, metadata)
    return Prepared(promised, plan.values, write, partial(_load, plan.model, bool(paths)), by, WEIGHTS_FILE, notes)


def _checked(plan: Plan, name: str) -> list[str]:
    """The modules of a weight, once it is known that the format can hold it."""
    what = "compressed-tensors"
    linear_paths(plan, name, what)
    weight, scheme, dtype = plan.weights[name], plan.scheme, plan.stored[name].dtype
    assert weight.bits is not None
    inputs = weight.tensor.matrix_shape[1]
    length = scheme.group_length(inputs)
    embeds = any(isinstance(module, nn.Embedding) for _, module in plan.holders[name])
    if embeds and (weight.bits != 8 or not scheme.is_symmetric(8)):
        raise ExportError(
            f"{name}: transformers loads embeddings of {what} as int8, symmetric, and not with {weight.bits} bits"
            f"{'' if scheme.is_symmetric(8) else ', asymmetric'}: give {weight.unit} 8 bits, or leave it out"
        )
    if inputs % length:
        raise ExportError(f"{name}: {what} has no shorter last group, and {inputs} is no multiple of {length}")
    if scheme.granularity == "tensor" and not scheme.is_symmetric(weight.bits):
        raise ExportError(f"{name}: {what} has no zero point by tensor; give granularity='channel'")
    if scheme.scale_dtype != dtype:
        raise ExportError(
            f"{name}: {what} decodes a weight in the dtype of its scales: give Scheme(scale_dtype={dtype})"
        )
    return [path for path, _ in plan.holders[name]]


def _kind(plan: Plan, path: str, name: str) -> tuple[int, bool, str]:
    """Bits, whether symmetric, and the format of a module's weight."""
    bits = plan.weights[name].bits
    assert bits is not None
    embeds = isinstance(plan.model.get_submodule(path), nn.Embedding)
    return bits, plan.scheme.is_symmetric(bits), PLAIN if embeds else PACKED


def _scheme(plan: Plan, bits: int, symmetric: bool, form: str, targets: list[str]) -> Any:
    api = library("compressed_tensors.quantization")
    group = plan.scheme.group_size if plan.scheme.granularity == "group" else None
    args = api.QuantizationArgs(
        num_bits=bits, type="int", symmetric=symmetric, strategy=plan.scheme.granularity, group_size=group
    )
    return api.QuantizationScheme(targets=targets, weights=args, format=form)


def _shapes(plan: Plan, path: str, name: str) -> Iterator[tuple[str, tuple[torch.dtype, tuple[int, ...]]]]:
    """The parts of a weight in the file: 32 bits in a word, each row filled up to whole words."""
    bits, symmetric, form = _kind(plan, path, name)
    outputs, inputs = plan.weights[name].tensor.matrix_shape
    rows, groups = plan.scheme.scale_shape(outputs, inputs)
    yield "weight_scale", (plan.scheme.scale_dtype, (1,) if plan.scheme.granularity == "tensor" else (rows, groups))
    if form == PLAIN:
        yield "weight", (torch.int8, (outputs, inputs))
        return
    yield "weight_packed", (torch.int32, (outputs, math.ceil(inputs * bits / 32)))
    yield "weight_shape", (torch.int64, (2,))
    if not symmetric:
        yield "weight_zero_point", (torch.int32, (math.ceil(outputs * bits / 32), groups))


def _compressed(plan: Plan, path: str, name: str) -> dict[str, Tensor]:
    """By the library's own compressor, which finds the codes again from the numbers that they stand for."""
    bits, symmetric, form = _kind(plan, path, name)
    quantised = plan.codes(name)
    assert quantised.scale is not None
    scale = quantised.scale.reshape(1) if plan.scheme.granularity == "tensor" else quantised.scale
    state = {"weight": _numbers(quantised), "weight_scale": scale}
    if quantised.zero is not None:
        state["weight_zero_point"] = (quantised.zero.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)
    compressor = library("compressed_tensors.compressors", "BaseCompressor").get_value_from_registry(form)
    found = compressor.compress(state, _scheme(plan, bits, symmetric, form, [path]))
    return {part: tensor.contiguous() for part, tensor in found.items()}


def _numbers(quantised: Quantised) -> Tensor:
    """What the codes stand for, in float64: dividing by the scale gives the codes again, without a tie."""
    assert quantised.scale is not None
    codes, scale = quantised.codes.double(), quantised.scale.double()
    group = quantised.scheme.group_length(codes.shape[1])
    if quantised.zero is not None:
        codes = codes - quantised.zero.double().repeat_interleave(group, 1)
    return codes * (scale if quantised.scheme.granularity == "tensor" else scale.repeat_interleave(group, 1))


def _quantisation(plan: Plan, paths: dict[str, str]) -> dict[str, Any]:
    """The configuration by which the library knows how each module is stored."""
    groups: dict[tuple[int, bool, str], list[str]] = {}
    for path, name in paths.items():
        groups.setdefault(_kind(plan, path, name), []).append(path)
    forms = {form for _, _, form in groups}
    config = library("compressed_tensors.quantization", "QuantizationConfig")(
        config_groups={
            f"group_{number}": _scheme(plan, *kind, targets) for number, (kind, targets) in enumerate(groups.items())
        },
        quant_method="compressed-tensors",
        format=forms.pop() if len(forms) == 1 else "mixed-precision",
        quantization_status="compressed",
        ignore=[],
    )
    described: dict[str, Any] = json.loads(config.model_dump_json())
    return described


def _load(model: nn.Module, compressed: bool, folder: Path) -> nn.Module:
    if not compressed:
        return load_folder(model, folder)
    at_once = library("transformers", "CompressedTensorsConfig")(dequantize=True)  # not at the first pass
    return load_folder(model, folder, quantization_config=at_once)
