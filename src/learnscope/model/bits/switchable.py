"""Models that set their own precision: `set_precision(layer, attn_bits=, mlp_bits=)`, and theirs back afterwards."""

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
"""Bits that say "as stored" to a model that has to be told something."""


def is_switchable(model: Any) -> bool:
    return callable(getattr(model, "set_precision", None))


@contextmanager
def switched(model: nn.Module, bits: Mapping[Unit, int], switch: Any = None) -> Iterator[None]:
    """`model` with the precision that `bits` asks of it or of `switch`; all is back afterwards, also after an error.

    What `set_precision` changes is not known, so everything that it could is kept: the contents and identity of
    parameters, buffers, submodules, and plain attributes by their value. That takes a second copy of the weights.

    A part that `bits` does not name is left to the model where `set_precision` takes None for it, is told what
    `get_precision(layer)` says where there is one, and is told 32 otherwise.
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
    """Whether leaving an argument out means "as it is": its default is None. Any other default would set something."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):  # written in C, or otherwise without a signature
        return False
    given = parameters.get(name)
    if given is None:
        return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return given.default is None


def _current(owner: Any, layer: int) -> Mapping[str, Any]:
    getter = getattr(owner, "get_precision", None)
    found = getter(layer) if callable(getter) else None
    return found if isinstance(found, Mapping) else {}
