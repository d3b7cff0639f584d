"""One place where an activation function is applied, and its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.features.activation_functions import Activation, slope, steepest
from learnscope.model.features.units import pieces
from learnscope.names import ROOT, clean_path, resolve
from learnscope.tensor.features.distribution import Distribution

FLAT = 0.01
"""A slope is flat below this share of the function's steepest."""
SATURATED = 95
"""A unit is saturated if its slope is flat for more than this many of 100 inputs."""


@dataclass(slots=True)
class Site:
    """One place in a model where an activation function is applied, with its statistics."""

    name: str
    layer: str
    function: str
    units: int
    alive: Tensor
    """Per unit: whether any output was not 0."""
    flat: Tensor
    """Per unit: number of inputs at which the slope was flat."""
    inputs: Tensor
    """Per unit: number of inputs that have a slope."""
    outputs: Distribution = field(default_factory=Distribution)
    steepest: Tensor | None = None

    def dead(self) -> Tensor:
        """Number of units whose output was always 0."""
        return (~self.alive).sum()

    def saturated(self) -> Tensor:
        """Number of units that were flat for more than 95 % of their inputs."""
        return (100 * self.flat > SATURATED * self.inputs).sum()

    def read_inputs(self, x: Tensor, dim: int, rows: Tensor | None, activation: Activation) -> None:
        # half precision would round the slopes themselves
        dtype = torch.promote_types(x.dtype, torch.float32)
        function = activation.in_dtype(dtype)
        for part in pieces(x, dim, rows):
            wide = part.to(dtype)
            if self.steepest is None:
                self.steepest = steepest(function, wide, activation.channels)
            slopes = slope(function, wide)
            self.flat += (slopes.abs() < FLAT * self.steepest).sum(0)
            self.inputs += (~slopes.isnan()).sum(0)

    def read_outputs(self, y: Tensor, dim: int, rows: Tensor | None) -> None:
        for part in pieces(y, dim, rows):
            self.alive |= (part != 0).any(0)
            self.outputs.add(part)


def layer_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that are modules with parameters, by name without wrappers; of several modules the outermost."""
    layers = {resolve(name).module for name, _ in model.named_parameters()}
    modules: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        layer = clean_path(path) or ROOT
        if layer in layers:
            modules.setdefault(layer, module)
    return modules


def layer_of(path: str) -> str:
    return resolve(f"{path}.weight" if path else "weight").layer


def first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return next((tensor for tensor in map(first_tensor, output) if tensor is not None), None)
    return output if isinstance(output, Tensor) else None


def is_measurable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim > 0 and tensor.layout is torch.strided and not tensor.is_nested


def why_not(tensor: Tensor) -> str:
    """Why a tensor is not measurable."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return "a nested or sparse tensor has no units to count"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return "a single number" if tensor.ndim == 0 else f"{dtype} is not floating-point"
