"""Which modules and functions are activations, and how steep they are."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.tensor.features.distribution import ACCELERATOR_CHUNK, CHUNK

Function = Callable[[Tensor], Tensor]

MODULES = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.RReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink,
    nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
)  # fmt: skip
"""torch's elementwise activations: not softmax, GLU or attention, which mix entries."""

FUNCTIONS = frozenset({
    "celu", "elu", "expit", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid",
    "logsigmoid", "mish", "prelu", "relu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softplus", "softshrink",
    "softsign", "tanh", "tanhshrink", "threshold",
})  # fmt: skip
"""The same as functions and methods, by their names in torch, torch.nn.functional and torch.Tensor."""

REACH, POINTS = 20.0, 8001
"""The grid for finding the steepest slope: every 0.005 from −20 to 20, including 0."""


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation of torch or, if transformers is imported, of transformers."""
    listed = getattr(sys.modules.get("transformers.activations"), "ACT2CLS", {}).values()
    classes = [entry[0] if isinstance(entry, tuple) else entry for entry in listed]
    kind = type(module)  # the identity, LinearActivation, has nothing to saturate
    return isinstance(module, MODULES) or (kind in classes and kind.__name__ != "LinearActivation")


def function_name(name: str) -> str | None:
    """The activation that a function such as `torch.relu_` or `special_expit` computes; None if it computes none.

    >>> function_name("relu_"), function_name("special_expit"), function_name("softmax")
    ('relu', 'sigmoid', None)
    """
    plain = name.removeprefix("special_").removesuffix("_")
    usual = {"expit": "sigmoid", "log_sigmoid": "logsigmoid"}.get(plain, plain)
    return usual if usual in FUNCTIONS else None


@dataclass(frozen=True, slots=True)
class Activation:
    """An elementwise function of one tensor. `channels`: it has one parameter for each entry of dimension 1."""

    name: str
    in_dtype: Callable[[torch.dtype], Function]
    """The function for inputs of a dtype, with its parameters in that dtype."""
    channels: bool = False


def of_module(module: nn.Module) -> Activation:
    tensors = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]

    def in_dtype(dtype: torch.dtype) -> Function:
        # a shallow copy, and the class's own forward: the model's weights and hooks are not used
        twin = copy.copy(module)
        for kind in ("_parameters", "_buffers"):
            twin.__dict__[kind] = {name: _cast(t, dtype) for name, t in getattr(module, kind).items()}
        return lambda x: type(module).forward(twin, x)

    return Activation(type(module).__name__, in_dtype, any(t.numel() > 1 for t in tensors))


def of_call(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Activation:
    """The call as a function of its first argument, with the other arguments fixed."""
    options = {key: value for key, value in kwargs.items() if key != "out"}  # out= would be overwritten

    def in_dtype(dtype: torch.dtype) -> Function:
        more = [_cast(a, dtype) for a in args]
        named = {key: _cast(value, dtype) for key, value in options.items()}
        return lambda x: function(x, *more, **named)

    tensors = [a for a in (*args, *options.values()) if isinstance(a, Tensor)]
    return Activation(name, in_dtype, any(t.numel() > 1 for t in tensors))


def slope(function: Function, x: Tensor) -> Tensor:
    """f′(x) elementwise, by autograd; NaN where x is NaN."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        y = function(leaf.clone())  # an in-place function must not write into a leaf
        if not y.requires_grad:
            return torch.zeros_like(x)
        (derivative,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    # the slope of a ReLU at NaN would be 0
    return torch.where(x.isnan(), x, derivative)


def steepest(function: Function, like: Tensor, channels: bool) -> Tensor:
    """max|f′| over the grid; with channels, one for each entry of the last dimension of `like`."""
    grid = torch.linspace(-REACH, REACH, POINTS, dtype=like.dtype, device=like.device).unsqueeze(1)
    wide = grid.expand(-1, like.shape[-1] if channels else 1)
    parts = wide.split(max(1, chunk_of(like) // wide.shape[1]))
    return torch.stack([slope(function, part).abs().nan_to_num(0.0).amax(0) for part in parts]).amax(0)


def chunk_of(tensor: Tensor) -> int:
    """Entries to work on at a time."""
    return CHUNK if tensor.device.type == "cpu" else ACCELERATOR_CHUNK


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value.detach()
    return value
