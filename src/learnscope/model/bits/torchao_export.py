"""A copy of a model whose weights torchao holds in 8 or 4 bits, to run it as it would be deployed on a CPU.

It uses the codes and scales that were measured, not torchao's own (its symmetric int8 divides by 127.5): the copy
computes what the model computes under `quantised`, up to the order of summation.

What torchao 0.18 offers for CPUs: at 8 bits a tensor that is dequantised at every call, which saves memory but no time;
at 4 bits ATen's int4 kernel, through a class that torchao calls a prototype. Its other classes for 4 bits need CUDA,
XPU or ARM, and for 2, 3, 5, 6 and 7 bits it stores one byte per entry: these are refused here.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantise import Bits, checked_widths, is_switchable, naming, readable
from learnscope.model.bits.quantised_units import QuantisedTensor, find_units, is_conv1d
from learnscope.tensor.bits.quantize import HALF_BITS, Quantised, Scheme, dequantize, quantize

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_INT4_GROUPS = (256, 128, 64, 32)
"""Group sizes of the int4 kernel: input features that share a scale."""
_INT4_ROWS = 16


class ExportError(ValueError):
    """A weight or width that torchao does not support on a CPU; the message says what is possible."""


def to_torchao(model: nn.Module, bits: Bits, scheme: Scheme | None = None) -> nn.Module:
    """A copy of `model` in which torchao holds the units at 8 and 4 bits; others stay as stored.

    GPT-2's Conv1D becomes a Linear. If a Linear is tied to an embedding, the Linear is quantised, the embedding gets
    the same values in its own dtype, and a warning says that they are two tensors now. The scales equal those of
    `quantised` bit for bit at 8 bits, and at 4 bits if `scheme.scale_dtype` is the model's dtype.
    """
    scheme = scheme or Scheme()
    if is_switchable(model):
        raise ExportError(f"{type(model).__name__} sets its own precision: torchao cannot know its rules")
    units = find_units(model, embeddings=True)
    chosen = {name: width for name, width in checked_widths(bits, units).items() if width <= HALF_BITS}
    for name, width in chosen.items():
        if width not in (8, 4):
            raise ExportError(
                f"{name}: torchao has nothing for {width} bits that saves memory on a CPU; 8 and 4 are possible"
            )
    exported = copy.deepcopy(model)
    parameters = dict(exported.named_parameters())
    for unit in units:
        for tensor in unit.tensors if unit.name in chosen else ():
            _replace(exported, tensor, parameters[tensor.name], chosen[unit.name], scheme)
    return exported


def _replace(model: nn.Module, tensor: QuantisedTensor, parameter: Tensor, bits: int, scheme: Scheme) -> None:
    """Put the quantised weight into every module that holds this parameter."""
    holders = [
        (path, module)
        for path, module in model.named_modules()
        if any(p is parameter for p in module.parameters(recurse=False))
    ]
    linear = [(path, module) for path, module in holders if isinstance(module, nn.Linear) or is_conv1d(module)]
    tables = [(path, module) for path, module in holders if isinstance(module, nn.Embedding)]
    if not linear or len(linear) + len(tables) < len(holders):
        kind = type(holders[0][1]).__name__
        raise ExportError(f"{tensor.name}: torchao quantises Linear, not {kind}; leave its unit out of the bits")
    if parameter.dtype not in _DTYPES:
        raise ExportError(f"{tensor.name} is {parameter.dtype}: torchao takes float32, bfloat16 and float16")
    matrix = readable(tensor, parameter)
    if parameter.device.type != "cpu":
        raise ExportError(
            f"{tensor.name} is on {parameter.device}: this export is for CPUs, move the model there first"
        )
    with naming(tensor.name):
        quantised = quantize(matrix, bits, scheme)
    weight = nn.Parameter((_int8 if bits == 8 else _int4)(tensor.name, quantised), requires_grad=False)
    for path, module in linear:
        _set_weight(model, path, module, weight)
    for path, table in tables:
        table.weight = nn.Parameter(tensor.as_stored(dequantize(quantised)), requires_grad=parameter.requires_grad)
        warnings.warn(
            f"{path} and {linear[0][0]} were one tensor and are two in the torchao copy: the ledger counts them once",
            stacklevel=3,
        )


def _set_weight(model: nn.Module, path: str, module: nn.Module, weight: nn.Parameter) -> None:
    """Give `module` the quantised weight; a Conv1D is replaced by a Linear."""
    if isinstance(module, nn.Linear):
        module.weight = weight
        return
    if not path:
        raise ExportError("the model itself is a Conv1D, in whose place no Linear can be put: wrap it in a Sequential")
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = weight
    linear.bias = module.bias  # type: ignore[assignment]  # Conv1D always has one
    linear.training = module.training
    above, _, name = path.rpartition(".")
    setattr(model.get_submodule(above), name, linear)


def _int8(name: str, quantised: Quantised) -> Tensor:
    outputs, inputs = quantised.codes.shape
    assert quantised.scale is not None  # 8 bits have one
    if quantised.zero is not None:
        raise ExportError(f"{name}: torchao's int8 weights are symmetric; give Scheme(symmetric=True) or None")
    if inputs % quantised.scheme.group_length(inputs):
        raise ExportError(
            f"{name}: torchao has no shorter last group, and {inputs} input features are no multiple of "
            f"{quantised.scheme.group_size}; give another group_size, or granularity='channel'"
        )
    block = [outputs if quantised.scheme.granularity == "tensor" else 1, quantised.scheme.group_length(inputs)]
    zero = torch.zeros_like(quantised.scale, dtype=torch.int8)
    build = _torchao("quantization", "Int8Tensor")
    return build(quantised.codes, quantised.scale, block, quantised.dtype, zero_point=zero)


def _int4(name: str, quantised: Quantised) -> Tensor:
    outputs, inputs = quantised.codes.shape
    assert quantised.scale is not None  # 4 bits have one
    shared = quantised.scheme.group_length(inputs)
    group = next((size for size in _INT4_GROUPS if inputs % size == 0 and shared % size == 0), None)
    if outputs % _INT4_ROWS or group is None or inputs % shared:
        raise ExportError(
            f"{name}: the int4 kernel needs output features in multiples of {_INT4_ROWS} and scales shared by multiples"
            f" of 32 input features; this weight is [{outputs}, {inputs}] {shared} to a scale. Give its unit 8 bits"
        )

    def per_group(values: Tensor) -> Tensor:
        return values.float().expand(outputs, -1).repeat_interleave(shared // group, dim=1)

    codes, scale = quantised.codes.int(), per_group(quantised.scale)
    if quantised.zero is None:
        codes, zero = codes + 8, torch.zeros_like(scale)
    else:  # the kernel computes (code - 8) * scale + zero
        zero = (8 - per_group(quantised.zero)) * scale
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    both = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous().to(quantised.dtype)
    build = _torchao("prototype.quantization.int4", "Int4OpaqueTensor")
    return build(packed, both, [1, group], torch.Size((outputs, inputs)))


def _torchao(module: str, name: str) -> Callable[..., Tensor]:
    try:
        tensor_class: Callable[..., Tensor] = getattr(importlib.import_module(f"torchao.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(f"torchao's {name} is not there ({error}): pip install 'torchao==0.18.0'") from error
    return tensor_class
