"""Models that set their own precision with `set_precision(layer, attn_bits=, mlp_bits=)`; it is restored afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from learnscope.model.bits.quantised_units import Unit, UnitsError
from learnscope.model.weights.object_state import preserved_state

FULL = 32
"""Bits that stand for "as stored" if `set_precision` requires a number."""


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
