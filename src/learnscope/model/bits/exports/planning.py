"""What is to be written of a model: which weights in which bits, and their codes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.ledger import stored_tensors
from learnscope.model.bits.quantise import Bits, checked_widths, is_switchable, naming, readable
from learnscope.model.bits.quantised_units import QuantisedTensor, find_units
from learnscope.model.bits.torchao_export import ExportError
from learnscope.model.weights.lazy import check_storable
from learnscope.tensor.bits.quantize import HALF_BITS, Quantised, Scheme, dequantize, quantize

Ready = Mapping[str, Quantised]
"""Codes and scales that were chosen already, by the names of parameters."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter that a file may hold in fewer bits; `bits` is None where it stays as it is stored."""

    unit: str
    tensor: QuantisedTensor
    bits: int | None


@dataclass(frozen=True)
class Plan:
    """A model with the bits of its weights, checked; its codes are made when they are asked for."""

    model: nn.Module
    scheme: Scheme
    bits: dict[str, int]
    """By unit."""
    weights: dict[str, Weight]
    """By the name of the parameter: all that are weights, also those that stay as they are."""
    stored: dict[str, Tensor]
    """Parameters and persistent buffers, each once under its first name."""
    ready: Ready

    @property
    def quantised_names(self) -> list[str]:
        return [name for name, weight in self.weights.items() if weight.bits is not None]

    def codes(self, name: str) -> Quantised:
        """Of a weight with 16 bits or fewer: those that were given, else by rounding to the nearest."""
        weight = self.weights[name]
        assert weight.bits is not None
        if name in self.ready:
            return self.ready[name]
        with naming(name):
            return quantize(self.matrix(name), weight.bits, self.scheme)

    def matrix(self, name: str) -> Tensor:
        """The weight as it is stored, as a matrix [out, in]."""
        return readable(self.weights[name].tensor, self.stored[name])

    def values(self, name: str) -> Tensor:
        """The numbers that the codes stand for, in the parameter's own shape and dtype."""
        return self.weights[name].tensor.as_stored(dequantize(self.codes(name)))

    @cached_property
    def holders(self) -> dict[str, list[tuple[str, nn.Module]]]:
        """Parameter → paths and modules that hold it, several where it is tied."""
        names = {id(tensor): name for name, tensor in self.stored.items()}
        found: dict[str, list[tuple[str, nn.Module]]] = {name: [] for name in self.stored}
        for path, module in self.model.named_modules(remove_duplicate=False):
            for parameter in module._parameters.values():
                if parameter is not None and id(parameter) in names:
                    found[names[id(parameter)]].append((path, module))
        return found


def plan_export(model: nn.Module, bits: Bits, scheme: Scheme | None = None, ready: Ready | None = None) -> Plan:
    """Refuses unknown units, bits that are not possible, and codes that are of other weights, bits or schemes."""
    scheme = scheme or Scheme()
    if is_switchable(model):
        raise ExportError(
            f"{type(model).__name__} sets its own precision, by rules that a file cannot hold: save it by its own means"
        )
    units = find_units(model, embeddings=True)
    chosen = checked_widths(bits, units)
    stored = stored_tensors(model)
    check_storable(stored)
    weights = {
        tensor.name: Weight(unit.name, tensor, width if (width := chosen.get(unit.name, 32)) <= HALF_BITS else None)
        for unit in units
        for tensor in unit.tensors
    }
    for name in weights:
        if stored[name].is_meta:
            raise ExportError(f"{name} is on the meta device and holds no values: load the model first")
    plan = Plan(model, scheme, chosen, weights, stored, dict(ready or {}))
    for name, quantised in plan.ready.items():
        _check_ready(plan, name, quantised)
    return plan


def _check_ready(plan: Plan, name: str, quantised: Quantised) -> None:
    weight = plan.weights.get(name)
    if weight is None or weight.bits is None:
        raise ExportError(f"quantised: {name!r} has codes, but no unit of the bits has this weight")
    if tuple(quantised.codes.shape) != weight.tensor.matrix_shape:
        raise ExportError(
            f"quantised: the codes of {name} are {list(quantised.codes.shape)}, its weight is "
            f"{list(weight.tensor.matrix_shape)}"
        )
    if quantised.bits != weight.bits or quantised.scheme != plan.scheme:
        raise ExportError(
            f"quantised: {name} has codes of {quantised.bits} bits and {quantised.scheme}, "
            f"and is to be written with {weight.bits} bits and {plan.scheme}"
        )


@dataclass(frozen=True)
class Prepared:
    """A file that is ready to be written: nothing about it is refused any more."""

    promised_bytes: int
    """Of the file with the weights, from shapes alone."""
    values: Callable[[str], Tensor]
    """The numbers that the file will hold for a weight in fewer bits, in its own shape and dtype."""
    write: Callable[[Path], None]
    load: Callable[[Path], nn.Module]
    """The model as the other library reads it."""
    checked_by: str
    weights_file: str | None = None
    """Its name inside the folder; None where the file is the whole."""
    notes: tuple[str, ...] = ()


def library(name: str, attribute: str | None = None) -> Any:
    """A module of an optional library, or something of it; a missing one is refused with the cure."""
    try:
        module = importlib.import_module(name)
        return module if attribute is None else getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        package = name.partition(".")[0]
        extra = {"torchao": "quant", "transformers": "hf"}.get(package, "export")
        raise ExportError(f"{name} is not there ({error}): pip install 'learnscope[{extra}]'") from error


def refuse_widths(plan: Plan, has: Mapping[int, str], what: str) -> None:
    """Refuse bits that a format does not have, all units at once, with what it has and what is nearest."""
    wrong = {unit: width for unit, width in plan.bits.items() if width <= HALF_BITS and width not in has}
    if not wrong:
        return
    first = [f"{unit} ({width} bits)" for unit, width in list(wrong.items())[:4]]
    more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
    nearest = {width: min(has, key=lambda other: (abs(other - width), -other)) for width in sorted(set(wrong.values()))}
    raise ExportError(
        f"{what} cannot hold {', '.join(first)}{more}. It has {'; '.join(f'{b}: {name}' for b, name in has.items())}. "
        f"Nearest: {', '.join(f'{near} bits for {width}' for width, near in nearest.items())}"
    )


_PARTS = {"codes", "scale", "zero", "bits", "scheme", "dtype"}


def refuse_other_parts(plan: Plan, what: str) -> None:
    """Refuse codes that need more than scales and zero points to be read."""
    for name, quantised in plan.ready.items():
        more = [f.name for f in fields(quantised) if f.name not in _PARTS and getattr(quantised, f.name) is not None]
        if more:
            raise ExportError(
                f"quantised: {name} also has {', '.join(more)}, and {what} holds codes, scales and zero points: export "
                "it as 'packed', or choose its codes by another method"
            )


def half_is_stored(plan: Plan, name: str) -> bool:
    """Whether 16 bits are what the weight has already."""
    return plan.stored[name].dtype in (torch.float16, torch.bfloat16)


def held_in_few_bits(plan: Plan) -> list[str]:
    """The weights that a folder for transformers holds as integers: in a half-precision model 16 bits are as stored."""
    names = []
    for name in plan.quantised_names:
        if plan.weights[name].bits != HALF_BITS:
            names.append(name)
        elif not half_is_stored(plan, name):
            raise ExportError(
                f"{name}: 16 bits in a model of {plan.stored[name].dtype} would mix dtypes, which its layers do not "
                "take: export model.to(torch.bfloat16), and leave this unit out of the bits"
            )
    return names
