"""A model with some of its units at fewer bits, temporarily.

A model with `set_precision(layer, attn_bits=, mlp_bits=)` sets its own precision, which is restored afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.quantised_units import QuantisedTensor, Unit, UnitsError, find_units, is_conv1d
from learnscope.model.weights.object_state import preserved_state
from learnscope.model.weights.swap import named_parameters, swapped
from learnscope.options import did_you_mean
from learnscope.tensor.bits.quantize import (
    HALF_BITS,
    WHOLE_BITS,
    QuantiseError,
    Scheme,
    checked_bits,
    fake_quantize,
)
from learnscope.tensor.bits.tokens import fake_quantize_tokens

Bits = Mapping[str, int]
"""Unit → bits. A unit that is not named stays as it is stored."""
FULL = 32
"""Bits that stand for "as stored" if `set_precision` requires a number."""


@contextmanager
def quantised(
    model: nn.Module,
    bits: Bits,
    scheme: Scheme | None = None,
    *,
    units: Sequence[Unit] | None = None,
    activation_bits: int | None = None,
    switch: Any = None,
    copies: QuantisedCopies | None = None,
) -> Iterator[None]:
    """`model` with the weights of its units at `bits`, under the guard; restored bit for bit afterwards, also on error.

    The weights keep their dtype, so the run time says nothing about a model that is stored like this. `activation_bits`
    also rounds the inputs of the modules in these units, each token by its own range. A model with
    `set_precision(layer, attn_bits=, mlp_bits=)`, or `switch`, an object that has it, sets its own bits. `copies` are
    those of this model and scheme that were made before.
    """
    units = find_units(model, embeddings=True) if units is None else units
    chosen = checked_widths(bits, units)
    changed = [unit for unit in units if unit.name in chosen]
    with ExitStack() as stack:
        if switch is not None or is_switchable(model):
            if activation_bits is not None:
                raise UnitsError("activation_bits: a model that sets its own precision rounds its activations itself")
            stack.enter_context(switched(model, {unit: chosen[unit.name] for unit in changed}, switch))
        else:
            weights = quantised_weights(model, chosen, scheme or Scheme(), units, copies)
            stack.enter_context(with_weights(model, weights, changed, activation_bits))
        yield


@contextmanager
def with_weights(
    model: nn.Module, weights: dict[str, Tensor], units: Sequence[Unit], activation_bits: int | None = None
) -> Iterator[None]:
    """`model` with these weights of `units`, whose modules' inputs are rounded too if `activation_bits` is given."""
    with ExitStack() as stack:
        stack.enter_context(swapped(model, weights))
        if activation_bits is not None:
            stack.enter_context(_rounded_inputs(model, units, activation_bits))
        yield


def quantised_weights(
    model: nn.Module, bits: Bits, scheme: Scheme, units: Sequence[Unit], copies: QuantisedCopies | None = None
) -> dict[str, Tensor]:
    """New values of the parameters whose units have 16 bits or fewer, by parameter name."""
    new: dict[str, Tensor] = {}
    for unit in units:
        width = bits.get(unit.name)
        if width is None or width > HALF_BITS:
            continue
        parameters = named_parameters(model, [tensor.name for tensor in unit.tensors])
        for tensor in unit.tensors:
            matrix = readable(tensor, parameters[tensor.name])
            with naming(tensor.name):
                if copies is None:
                    new[tensor.name] = tensor.as_stored(fake_quantize(matrix, width, scheme))
                else:
                    new[tensor.name] = copies.of(tensor, matrix, width)
    return new


def readable(tensor: QuantisedTensor, parameter: Tensor) -> Tensor:
    """The parameter as a matrix [out, in]; refuses one on the meta device, which has no values."""
    if parameter.is_meta:
        raise QuantiseError(f"{tensor.name} is on the meta device and holds no values: load the model first")
    return tensor.as_matrix(parameter.detach())


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A `QuantiseError` raised inside begins with this name."""
    try:
        yield
    except QuantiseError as error:
        raise QuantiseError(f"{name}: {error}") from error


def checked_widths(bits: Bits, units: Sequence[Unit]) -> dict[str, int]:
    """`bits` as plain numbers; refuses unknown units and invalid bits."""
    names = [unit.name for unit in units]
    for name in bits:
        if name not in names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            listed = f"{', '.join(names[:8])}{more}"
            raise UnitsError(f"{name!r} is not a unit of this model.{did_you_mean(name, names)} Its units: {listed}.")
    chosen: dict[str, int] = {}
    for name, width in bits.items():
        with naming(name):
            chosen[name] = checked_bits(width)
    return chosen


def from_layers(model: nn.Module | Sequence[Unit], layers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bits by unit from one `{"attn_bits": 8, "mlp_bits": 4}` per layer, in order; other units stay as stored."""
    units = find_units(model) if isinstance(model, nn.Module) else list(model)
    count = len({unit.index for unit in units if unit.index is not None})
    if not count:
        raise UnitsError("the model has no blocks that are known, so bits cannot be given by layer: name its units")
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise UnitsError(f"{layers!r}: bits by unit, or a list with bits for each of the {count} layers, are needed")
    if len(layers) != count:
        raise UnitsError(f"bits for {len(layers)} layers were given, the model has {count}: give one entry for each")
    bits: dict[str, int] = {}
    for number, entry in enumerate(layers):
        if not isinstance(entry, Mapping):
            raise UnitsError(f"layer {number}: {entry!r} is not of the form {{'attn_bits': ..., 'mlp_bits': ...}}")
        for key in entry:
            if key not in ("attn_bits", "mlp_bits"):
                raise UnitsError(f"layer {number}: {key!r} is not known; 'attn_bits' and 'mlp_bits' are")
        for part in ("attn", "mlp"):
            width = entry.get(f"{part}_bits")
            if width is None:
                continue
            members = [unit.name for unit in units if unit.index == number and unit.part == part]
            if not members:
                raise UnitsError(f"layer {number} has no {part} of its own, yet {part}_bits={width} was given for it")
            bits |= dict.fromkeys(members, width)
    return checked_widths(bits, units)


@contextmanager
def _rounded_inputs(model: nn.Module, units: Sequence[Unit], bits: int) -> Iterator[None]:
    """Round the inputs of the modules in `units` to `bits` bits, by hooks."""
    if isinstance(bits, bool) or bits not in WHOLE_BITS:
        raise QuantiseError(f"activation_bits={bits}: 2 to 8 are possible")
    modules = dict(model.named_modules())

    def rounded(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (fake_quantize_tokens(args[0], bits), *args[1:])

    with ExitStack() as stack:
        for path in dict.fromkeys(tensor.module for unit in units for tensor in unit.tensors):
            module = modules[path]
            is_called = not isinstance(modules.get(path.rpartition(".")[0]), nn.MultiheadAttention)
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                continue  # its inputs are whole numbers
            if not (isinstance(module, nn.Linear) or is_conv1d(module)) or not is_called:
                raise QuantiseError(
                    f"activation_bits: the inputs of {path or type(module).__name__} do not come to a Linear as tokens "
                    "and cannot be rounded on their way; leave its unit out of the bits, or quantise weights only"
                )
            stack.callback(module.register_forward_pre_hook(rounded).remove)
        yield


def is_switchable(model: Any) -> bool:
    return callable(getattr(model, "set_precision", None))


@contextmanager
def switched(model: nn.Module, bits: Mapping[Unit, int], switch: Any = None) -> Iterator[None]:
    """`model` at the precision `bits`, set by it or by `switch`; everything is restored afterwards, also on error.

    It is not known what `set_precision` changes, so all that it could change is saved, which takes a second copy of the
    weights. For a part that `bits` does not name, it is called without an argument if its default is None, otherwise
    with what `get_precision(layer)` returns if there is such a method, otherwise with 32.
    """
    owner: Any = model if switch is None else switch
    if not is_switchable(owner):
        raise UnitsError(
            f"switch: {type(owner).__name__} has no method set_precision(layer, attn_bits=, mlp_bits=), which is "
            "needed to set a model's precision"
        )
    by_layer: dict[int, dict[str, int]] = {}
    for unit, width in bits.items():
        if unit.index is None or unit.part not in ("attn", "mlp"):
            raise UnitsError(
                f"{unit.name}: a model that sets its own precision does so for the attention and MLP of its layers, "
                "not for other units; leave it out of the bits"
            )
        by_layer.setdefault(unit.index, {})[f"{unit.part}_bits"] = width
    with preserved_state(model, owner):
        for layer in sorted(by_layer):
            owner.set_precision(layer, **_required(owner, layer, by_layer[layer]), **by_layer[layer])
        torch.clear_autocast_cache()
        yield
    torch.clear_autocast_cache()


def _required(owner: Any, layer: int, bits: Mapping[str, int]) -> dict[str, int]:
    """The arguments of `set_precision` beyond `bits` that cannot be left out, with the layer's current bits."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):  # written in C, or otherwise without a signature
        parameters = inspect.signature(owner.set_precision).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    required: dict[str, int] = {}
    for name in {"attn_bits", "mlp_bits"} - bits.keys():
        # omitting an argument changes nothing if its default is None; any other default would set something
        if not (parameters[name].default is None if name in parameters else takes_any):
            getter = getattr(owner, "get_precision", None)
            current = getter(layer) if callable(getter) else None
            value = current.get(name) if isinstance(current, Mapping) else None
            required[name] = FULL if value is None else value
    return required
