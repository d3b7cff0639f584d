"""A folder whose weights are torchao's tensors: `from_pretrained` loads it back.

8 bits: `Int8Tensor`, by tensor, channel or group. 4 bits: `Int4Tensor`, in groups, of bfloat16 models: the only class
of 4 bits that torchao's safetensors support takes and that packs two codes into a byte. Its kernel needs a GPU, so
here it is loaded, and decoded by torchao's own function (`prototype.gptq`), but not run.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.exports.planning import (
    Plan,
    Prepared,
    held_in_few_bits,
    library,
    refuse_other_parts,
    refuse_widths,
)
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

_HAS = {16: "as stored, of a model in half precision", 8: "int8, symmetric", 4: "int4 in groups, of bfloat16 models"}
_INT4_GROUPS = (32, 64, 128, 256)


def prepare(plan: Plan, tokenizer: Any) -> Prepared:
    check_pretrained(plan.model, "torchao")
    refuse_other_parts(plan, "torchao")
    refuse_widths(plan, _HAS, "torchao")
    paths = {name: _checked(plan, name) for name in held_in_few_bits(plan)}
    tied = [name for name, linear in paths.items() if len(plan.holders[name]) > len(linear)]
    notes = tuple(
        f"{name} is tied: torchao holds it in 8 bits as the head, and the embedding has the same numbers in "
        f"{str(plan.stored[name].dtype).removeprefix('torch.')}"
        for name in tied
    )
    # the numbers that the promise needs are shapes and the text of the metadata: meta tensors have both
    shapes, metadata = _flattened(plan, paths, meta=True)
    promised = safetensors_bytes({name: (t.dtype, t.shape) for name, t in shapes.items()}, metadata)
    config = partial(_config, plan, paths, untied=bool(tied))
    int4 = any(plan.weights[name].bits == 4 for name in paths)

    def write(folder: Path) -> None:
        tensors, own = _flattened(plan, paths, meta=False)
        write_folder(folder, plan, tensors, own, config(), "torchao", tokenizer)

    def load(folder: Path) -> nn.Module:
        loaded = load_folder(plan.model, folder)
        return _decoded(loaded) if int4 else loaded

    by = "loaded by transformers with torchao"
    by += "; int4 decoded by torchao's own function, since its kernel needs a GPU" if int4 else ", and run"
    return Prepared(promised, partial(_values, plan), write, load, by, WEIGHTS_FILE, notes)


def _checked(plan: Plan, name: str) -> list[str]:
    """The Linear modules of a weight, once it is known that torchao can hold it."""
    linear = linear_paths(plan, name, "torchao")
    weight, dtype, scheme = plan.weights[name], plan.stored[name].dtype, plan.scheme
    if not linear:
        raise ExportError(
            f"{name}: torchao holds Linear in few bits, not embeddings; leave {weight.unit} out of the bits"
        )
    inputs = weight.tensor.matrix_shape[1]
    length = scheme.group_length(inputs)
    if inputs % length:
        raise ExportError(f"{name}: torchao has no shorter last group, and {inputs} is no multiple of {length}")
    if weight.bits == 8 and not scheme.is_symmetric(8):
        raise ExportError(f"{name}: torchao's int8 is symmetric; give Scheme(symmetric=True) or None")
    if weight.bits == 4:
        if len(plan.holders[name]) > len(linear):
            raise ExportError(f"{name} is tied to an embedding, which torchao has no 4 bits for: give it 8")
        if dtype != torch.bfloat16 or scheme.scale_dtype != torch.bfloat16:
            raise ExportError(
                f"{name}: torchao's int4 kernel computes in bfloat16: export model.to(torch.bfloat16) with "
                f"Scheme(scale_dtype=torch.bfloat16), not {dtype} with {scheme.scale_dtype}; or give it 8 bits"
            )
        if scheme.granularity != "group" or length not in _INT4_GROUPS:
            raise ExportError(
                f"{name}: torchao's int4 has groups of 32, 64, 128 or 256: Scheme(granularity='group', …)"
            )
    elif dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ExportError(f"{name} is {dtype}: torchao takes float32, bfloat16 and float16")
    return linear


def _flattened(plan: Plan, paths: dict[str, list[str]], *, meta: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of the file and its metadata, by torchao's own function; on the meta device only their shapes."""
    state: dict[str, Tensor] = {}
    for name, tensor in plan.stored.items():
        if name not in paths:
            state[name] = _plain(tensor.detach(), meta)
            continue
        held = _int4(plan, name, meta) if plan.weights[name].bits == 4 else _int8(plan, name, meta)
        state |= {f"{path}.weight": held for path in paths[name]}
        if name not in state:  # its first name is that of a tied embedding
            state[name] = _plain(tensor.detach(), True) if meta else plan.values(name)
    if not paths:
        return state, {"format": "pt"}
    flatten = library("torchao.prototype.safetensors.safetensors_support", "flatten_tensor_state_dict")
    tensors, metadata = flatten(state)
    return tensors, {**metadata, "format": "pt"}


def _plain(tensor: Tensor, meta: bool) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") if meta else tensor.cpu().contiguous()


def _codes(plan: Plan, name: str, meta: bool) -> Quantised:
    if not meta:
        return plan.codes(name)
    weight, scheme = plan.weights[name], plan.scheme
    assert weight.bits is not None
    outputs, inputs = weight.tensor.matrix_shape
    scale = torch.empty(scheme.scale_shape(outputs, inputs), dtype=scheme.scale_dtype, device="meta")
    symmetric = scheme.is_symmetric(weight.bits)
    codes = torch.empty(outputs, inputs, dtype=torch.int8 if symmetric else torch.uint8, device="meta")
    zero = None if symmetric else scale.to(torch.uint8)
    return Quantised(codes, scale, zero, weight.bits, scheme, plan.stored[name].dtype)


def _int8(plan: Plan, name: str, meta: bool) -> Tensor:
    quantised = _codes(plan, name, meta)
    assert quantised.scale is not None
    outputs, inputs = quantised.codes.shape
    block = [outputs if plan.scheme.granularity == "tensor" else 1, plan.scheme.group_length(inputs)]
    zero = torch.zeros_like(quantised.scale, dtype=torch.int8)
    build = library("torchao.quantization", "Int8Tensor")
    held: Tensor = build(
        quantised.codes.cpu() if not meta else quantised.codes, quantised.scale, block, quantised.dtype, zero_point=zero
    )
    return held


def _int4(plan: Plan, name: str, meta: bool) -> Tensor:
    """w = q · scale + zero with q from -8 to 7; two of them in a byte, the first in its lower half."""
    quantised = _codes(plan, name, meta)
    assert quantised.scale is not None
    inputs = quantised.codes.shape[1]
    signed = quantised.codes.to(torch.int16) - (0 if quantised.zero is None else 8)
    packed = ((signed[:, 1::2] & 15) << 4 | (signed[:, ::2] & 15)).to(torch.uint8).view(torch.int8)
    scale = quantised.scale.t().contiguous()
    zero = torch.zeros_like(scale) if quantised.zero is None else _zeros(quantised).t().contiguous()
    build = library("torchao.quantization", "Int4Tensor")
    held: Tensor = build(packed, scale, zero, [1, plan.scheme.group_length(inputs)], quantised.codes.shape)
    return held


def _zeros(quantised: Quantised) -> Tensor:
    """What a code of 8 stands for, rounded to the dtype in which it is stored."""
    assert quantised.scale is not None
    assert quantised.zero is not None
    return ((8 - quantised.zero.float()) * quantised.scale.float()).to(quantised.scale.dtype)


def _values(plan: Plan, name: str) -> Tensor:
    weight = plan.weights[name]
    if weight.bits != 4 or plan.scheme.is_symmetric(4):
        return plan.values(name)
    quantised = plan.codes(name)
    assert quantised.scale is not None
    group = plan.scheme.group_length(quantised.codes.shape[1])
    wide = quantised.scale.float().repeat_interleave(group, 1), _zeros(quantised).float().repeat_interleave(group, 1)
    return weight.tensor.as_stored(((quantised.codes.float() - 8) * wide[0] + wide[1]).to(quantised.dtype))


def _decoded(model: nn.Module) -> nn.Module:
    """The model with its int4 weights as plain numbers, by torchao's own function."""
    decode = library("torchao.prototype.gptq.api", "_int4_row_dequantize_zp")
    int4 = library("torchao.quantization", "Int4Tensor")
    for module in model.modules():
        weight: Any = getattr(module, "weight", None)
        if not isinstance(weight, int4):
            continue
        low, high = weight.qdata << 4 >> 4, weight.qdata >> 4  # on signed bytes, which keeps the sign
        codes = torch.stack([low, high], dim=-1).reshape(weight.shape)
        plain = decode(codes, weight.scale, weight.zero_point, weight.block_size[-1]).to(weight.dtype)
        module.weight = nn.Parameter(plain, requires_grad=False)
    return model


def _config(plan: Plan, paths: dict[str, list[str]], *, untied: bool) -> dict[str, Any]:
    if not paths:
        return configuration(plan.model, None, untied=untied)
    api = library("torchao.quantization")
    kinds: dict[str, Any] = {}
    for name, linear in paths.items():
        inputs = plan.weights[name].tensor.matrix_shape[1]
        length = plan.scheme.group_length(inputs)
        if plan.weights[name].bits == 4:
            kind = api.Int4WeightOnlyConfig(group_size=length, set_inductor_config=False)
        else:
            by = {"tensor": api.PerTensor(), "channel": api.PerRow(), "group": api.PerGroup(length)}
            kind = api.Int8WeightOnlyConfig(granularity=by[plan.scheme.granularity], set_inductor_config=False)
        kinds |= dict.fromkeys(linear, kind)
    described = library("transformers", "TorchAoConfig")(api.FqnToConfig(kinds)).to_dict()
    plain: dict[str, Any] = json.loads(json.dumps(described, default=str))
    return configuration(plan.model, plain, untied=untied)
