"""Models that set their own precision with `set_precision(layer, attn_bits=, mlp_bits=)`; it is restored afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from learnscope.model.bits.quantised_units import Unit, UnitsError
from learnscope.model.weights.object_state import kept_state

FULL = 32
"""Bits that stand for "as stored" if `set_precision` requires a number."""


def is_switchable(model: Any) -> bool:
    return callable(getattr(model, "set_precision", None))


@contextmanager
def switched(model: nn.Module, bits: Mapping[Unit, int], switch: Any = None) -> Iterator[None]:
    """`model` at the precision `bits`, set by it or by `switch`; everything is restored afterwards, also on error.

    It is not known what `set_precision` changes, so everything it could change is kept: contents and identity of
    parameters, buffers and submodules, and the values of plain attributes. That takes a second copy of the weights.

    For a part that `bits` does not name, `set_precision` is called without an argument if its default is None,
    otherwise with what `get_precision(layer)` returns if there is such a method, otherwise with 32.
    """
    owner: Any = model if switch is None else switch
    if not is_switchable(owner):
        raise UnitsError(
            f"switch: {type(owner).__name__} has no method set_precision(layer, attn_bits=, mlp_bits=), which is "
            "needed to set a model's precision"
        )
    by_layer: dict[int, dict[str, int]] = {}
    for unit, wanted in bits.items():
        if unit.index is None or unit.part not in ("attn", "mlp"):
            raise UnitsError(
                f"{unit.name}: a model that sets its own precision does so for the attention and MLP of its layers, "
                "not for other units; leave it out of the bits"
            )
        by_layer.setdefault(unit.index, {})[f"{unit.part}_bits"] = wanted
    with kept_state(model, owner):
        for layer in sorted(by_layer):
            owner.set_precision(layer, **_arguments(owner, layer, by_layer[layer]))
        torch.clear_autocast_cache()
        yield
    torch.clear_autocast_cache()


def _arguments(owner: Any, layer: int, wanted: Mapping[str, int]) -> dict[str, int]:
    arguments = dict(wanted)
    for name in ("attn_bits", "mlp_bits"):
        if name in arguments or _may_be_left_out(owner.set_precision, name):
            continue
        current = _current(owner, layer).get(name)
        arguments[name] = FULL if current is None else current
    return arguments


def _may_be_left_out(method: Callable[..., Any], name: str) -> bool:
    """Whether omitting an argument changes nothing: its default is None. Any other default would set something."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):  # written in C, or otherwise without a signature
        return False
    declared = parameters.get(name)
    if declared is None:
        return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return declared.default is None


def _current(owner: Any, layer: int) -> Mapping[str, Any]:
    getter = getattr(owner, "get_precision", None)
    precision = getter(layer) if callable(getter) else None
    return precision if isinstance(precision, Mapping) else {}
