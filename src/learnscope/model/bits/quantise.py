"""A model with some of its units in fewer bits, for as long as it is looked at."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from learnscope.model.bits.quantised_units import (
    QuantisedTensor,
    Unit,
    UnitsError,
    find_units,
    is_conv1d,
    number_of_layers,
)
from learnscope.model.bits.switchable import is_switchable, switched
from learnscope.model.weights.swap import named_parameters, swapped
from learnscope.tensor.bits.quantize import HALF_BITS, WHOLE_BITS, QuantiseError, Scheme, checked_bits, fake_quantize
from learnscope.tensor.bits.quantize_activation import fake_quantize_tokens

Bits = Mapping[str, int]
"""Unit → bits. A unit that is not named stays as it is stored."""


@contextmanager
def quantised(
    model: nn.Module,
    bits: Bits,
    scheme: Scheme | None = None,
    *,
    units: Sequence[Unit] | None = None,
    activation_bits: int | None = None,
    switch: Any = None,
) -> Iterator[None]:
    """`model` with the weights of its units as `bits` says; its own are back afterwards bit for bit, also on error.

    Meant for use under the guard. The weights keep their dtype: they have the values that fewer bits can hold, and the
    time that the model takes says nothing about one that is stored so. `activation_bits` also rounds what enters the
    modules of the units that `bits` names, each token by its own range.

    A model with `set_precision(layer, attn_bits=, mlp_bits=)`, or `switch`, an object that has it, sets its own bits.
    """
    known = find_units(model, embeddings=True) if units is None else list(units)
    chosen = checked(bits, known)
    with ExitStack() as stack:
        if switch is not None or is_switchable(model):
            if activation_bits is not None:
                raise UnitsError("activation_bits: a model that sets its own precision rounds its activations itself")
            stack.enter_context(
                switched(model, {unit: chosen[unit.name] for unit in known if unit.name in chosen}, switch)
            )
        else:
            stack.enter_context(swapped(model, quantised_weights(model, chosen, scheme or Scheme(), known)))
            if activation_bits is not None:
                stack.enter_context(
                    _rounded_inputs(model, [unit for unit in known if unit.name in chosen], activation_bits)
                )
        yield


def quantised_weights(model: nn.Module, bits: Bits, scheme: Scheme, units: Sequence[Unit]) -> dict[str, Tensor]:
    """New values of the parameters whose units are in 16 bits or fewer, by the parameter's name."""
    new: dict[str, Tensor] = {}
    for unit in units:
        wanted = bits.get(unit.name)
        if wanted is None or wanted > HALF_BITS:
            continue
        parameters = named_parameters(model, [tensor.name for tensor in unit.tensors])
        for tensor in unit.tensors:
            matrix = readable(tensor, parameters[tensor.name])
            try:
                new[tensor.name] = tensor.as_stored(fake_quantize(matrix, wanted, scheme))
            except QuantiseError as error:
                raise QuantiseError(f"{tensor.name}: {error}") from error
    return new


def readable(tensor: QuantisedTensor, parameter: Tensor) -> Tensor:
    """The parameter as a matrix [out, in]; refuses by name one without values."""
    if parameter.is_meta:
        raise QuantiseError(f"{tensor.name} is on the meta device and holds no values: load the model first")
    return tensor.as_matrix(parameter.detach())


def checked(bits: Bits, units: Sequence[Unit]) -> dict[str, int]:
    """`bits` as plain numbers; refuses names that are no units, and bits that mean nothing."""
    names = [unit.name for unit in units]
    for name in bits:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UnitsError(f"{name!r} is no unit of this model.{hint} Its units: {_some(names)}.")
    chosen: dict[str, int] = {}
    for name, wanted in bits.items():
        try:
            chosen[name] = checked_bits(wanted)
        except QuantiseError as error:
            raise QuantiseError(f"{name}: {error}") from error
    return chosen


def from_layers(model: nn.Module | Sequence[Unit], layers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Bits by unit from one `{"attn_bits": 8, "mlp_bits": 4}` a layer, in the order of the layers.

    A key that is left out leaves its units as stored. Other units of a block (`part` "other") stay as stored too.
    """
    units = find_units(model) if isinstance(model, nn.Module) else list(model)
    count = number_of_layers(units)
    if not count:
        raise UnitsError("the model has no blocks that are known, so bits cannot be given by layer: name its units")
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        raise UnitsError(f"{layers!r}: bits by unit, or a list with bits for each of the {count} layers, are needed")
    if len(layers) != count:
        given = len(layers)
        raise UnitsError(f"bits for {given} layers were given, the model has {count}: give one entry for each")
    bits: dict[str, int] = {}
    for number, entry in enumerate(layers):
        if not isinstance(entry, Mapping):
            raise UnitsError(f"layer {number}: {entry!r} is no {{'attn_bits': ..., 'mlp_bits': ...}}")
        unknown = [key for key in entry if key not in ("attn_bits", "mlp_bits")]
        if unknown:
            raise UnitsError(f"layer {number}: {unknown[0]!r} is not known; 'attn_bits' and 'mlp_bits' are")
        for part in ("attn", "mlp"):
            wanted = entry.get(f"{part}_bits")
            if wanted is None:
                continue
            found = [unit.name for unit in units if unit.index == number and unit.part == part]
            if not found:
                raise UnitsError(f"layer {number} has no {part} of its own, yet {part}_bits={wanted} was given for it")
            bits |= dict.fromkeys(found, wanted)
    return checked(bits, units)


@contextmanager
def _rounded_inputs(model: nn.Module, units: Sequence[Unit], bits: int) -> Iterator[None]:
    """Hooks by which the modules of `units` get inputs of `bits` bits."""
    if isinstance(bits, bool) or bits not in WHOLE_BITS:
        raise QuantiseError(f"activation_bits={bits}: 2 to 8 are possible")
    modules = dict(model.named_modules())

    def rounded(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (fake_quantize_tokens(args[0], bits), *args[1:])

    handles = []
    try:
        for path in dict.fromkeys(tensor.module for unit in units for tensor in unit.tensors):
            module = modules[path]
            called = not isinstance(modules.get(path.rpartition(".")[0]), nn.MultiheadAttention)
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                continue  # its inputs are whole numbers
            if not (isinstance(module, nn.Linear) or is_conv1d(module)) or not called:
                raise QuantiseError(
                    f"activation_bits: the inputs of {path or type(module).__name__} do not come to a Linear as tokens "
                    "and cannot be rounded on their way; leave its unit out of the bits, or quantise weights only"
                )
            handles.append(module.register_forward_pre_hook(rounded))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
