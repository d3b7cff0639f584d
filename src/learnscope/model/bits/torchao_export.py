"""A copy of a model whose weights torchao holds in 8 or 4 bits, to be run as it would be deployed on a CPU.

The codes and scales are those that were measured, not torchao's own choice (its symmetric int8 divides by 127.5): the
copy computes what the model computes under `quantised`, up to the order of its sums.

What torchao 0.18 has for CPUs: at 8 bits a tensor that is widened at every call, so that it saves memory and no time;
at 4 bits ATen's int4 kernel, through a class that torchao calls a prototype. Its other classes for 4 bits need CUDA,
XPU or ARM, and for 2, 3, 5, 6 and 7 bits it stores a byte an entry: these are refused here.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantise import Bits, checked, readable
from learnscope.model.bits.quantised_units import QuantisedTensor, Unit, find_units, is_conv1d
from learnscope.model.bits.switchable import is_switchable
from learnscope.tensor.bits.quantize import HALF_BITS, Quantised, QuantiseError, Scheme, dequantize, quantize

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_INT4_GROUPS = (256, 128, 64, 32)
"""Input features that the int4 kernel lets share a scale."""
_INT4_ROWS = 16


class ExportError(ValueError):
    """What torchao cannot hold or run on a CPU; the message names it and says what is possible."""


def to_torchao(
    model: nn.Module, bits: Bits, scheme: Scheme | None = None, *, units: Sequence[Unit] | None = None
) -> nn.Module:
    """A copy of `model` in which the units at 8 and 4 bits are torchao's; the model itself stays as it is.

    Units that are not named, or have more than 16 bits, stay as stored. GPT-2's Conv1D becomes a Linear. Where a Linear
    is tied to an embedding, the Linear is quantised, the embedding gets the same values in its own dtype, and a warning
    says that they are two tensors now.

    Bit for bit the scales agree with `quantised` at 8 bits, and at 4 bits if `scheme.scale_dtype` is the model's dtype,
    which is what the int4 kernel takes them in.
    """
    scheme = scheme or Scheme()
    if is_switchable(model):
        raise ExportError(f"{type(model).__name__} sets its own precision: torchao cannot know its rules")
    known = find_units(model, embeddings=True) if units is None else list(units)
    chosen = {
        name: wanted for name, wanted in checked(bits, known).items() if wanted > HALF_BITS or _possible(name, wanted)
    }
    made = copy.deepcopy(model)
    parameters = dict(made.named_parameters())
    for unit in known:
        wanted = chosen.get(unit.name, 32)
        for tensor in unit.tensors if wanted <= HALF_BITS else ():
            _replace(made, tensor, parameters[tensor.name], wanted, scheme)
    return made


def _possible(unit: str, bits: int) -> bool:
    if bits not in (8, 4):
        raise ExportError(
            f"{unit}: torchao has nothing for {bits} bits that saves memory on a CPU; 8 and 4 are possible"
        )
    return True


def _replace(model: nn.Module, tensor: QuantisedTensor, parameter: Tensor, bits: int, scheme: Scheme) -> None:
    """Every module that holds this parameter gets the quantised one."""
    holders = [(path, module) for path, module in model.named_modules() if _holds(module, parameter)]
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
    try:
        made = quantize(matrix, bits, scheme)
    except QuantiseError as error:
        raise QuantiseError(f"{tensor.name}: {error}") from error
    weight = nn.Parameter((_int8 if bits == 8 else _int4)(tensor.name, made), requires_grad=False)
    for path, module in linear:
        _give(model, path, module, weight)
    for path, table in tables:
        table.weight = nn.Parameter(tensor.as_stored(dequantize(made)), requires_grad=parameter.requires_grad)
        warnings.warn(
            f"{path} and {linear[0][0]} were one tensor and are two in the torchao copy: the ledger counts them once",
            stacklevel=3,
        )


def _holds(module: nn.Module, parameter: Tensor) -> bool:
    return any(own is parameter for own in module.parameters(recurse=False))


def _give(model: nn.Module, path: str, module: nn.Module, weight: nn.Parameter) -> None:
    """`module`, or the Linear that takes the place of a Conv1D, with the quantised weight."""
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


def _int8(name: str, made: Quantised) -> Tensor:
    outputs, inputs = made.codes.shape
    assert made.scale is not None  # 8 bits have one
    if made.zero is not None:
        raise ExportError(f"{name}: torchao's int8 weights are symmetric; give Scheme(symmetric=True) or None")
    if inputs % made.scheme.group_length(inputs):
        raise ExportError(
            f"{name}: torchao has no shorter last group, and {inputs} input features are no multiple of "
            f"{made.scheme.group_size}; give another group_size, or granularity='channel'"
        )
    block = [outputs if made.scheme.granularity == "tensor" else 1, made.scheme.group_length(inputs)]
    zero = torch.zeros_like(made.scale, dtype=torch.int8)
    build = _torchao("quantization", "Int8Tensor")
    return build(made.codes, made.scale, block, made.dtype, zero_point=zero)


def _int4(name: str, made: Quantised) -> Tensor:
    outputs, inputs = made.codes.shape
    assert made.scale is not None  # 4 bits have one
    shared = made.scheme.group_length(inputs)
    group = next((size for size in _INT4_GROUPS if inputs % size == 0 and shared % size == 0), None)
    if outputs % _INT4_ROWS or group is None or inputs % shared:
        raise ExportError(
            f"{name}: the int4 kernel needs output features in multiples of {_INT4_ROWS} and scales shared by multiples"
            f" of 32 input features; this weight is [{outputs}, {inputs}] {shared} to a scale. Give its unit 8 bits"
        )
    scale = made.scale.float().expand(outputs, -1).repeat_interleave(shared // group, dim=1)
    if made.zero is None:
        codes, zero = made.codes.int() + 8, torch.zeros_like(scale)
    else:  # the kernel computes (code - 8) * scale + zero
        codes = made.codes.int()
        zero = (8 - made.zero.float().expand(outputs, -1).repeat_interleave(shared // group, dim=1)) * scale
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    both = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous().to(made.dtype)
    build = _torchao("prototype.quantization.int4", "Int4OpaqueTensor")
    return build(packed, both, [1, group], torch.Size((outputs, inputs)))


def _torchao(home: str, name: str) -> Callable[..., Tensor]:
    try:
        found: Callable[..., Tensor] = getattr(importlib.import_module(f"torchao.{home}"), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(f"torchao's {name} is not there ({error}): pip install 'torchao==0.18.0'") from error
    return found
