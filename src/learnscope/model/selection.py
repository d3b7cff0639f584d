"""Which parameters a name stands for: those of a layer, of a module, or one of them; and a few layers of many."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from torch import nn

from learnscope.names import group_parameters, resolve


class SelectionError(ValueError):
    """A name that stands for no parameter of the model; the message names those that are near."""


def select_parameters(model: nn.Module, wanted: str | Iterable[str]) -> list[int]:
    """Positions among `model.named_parameters()` of what the names stand for, in order and once each.

    A name is that of a layer, of a module as in `model.named_modules()`, or of a parameter; what wrappers put into
    names (`module.`, `_orig_mod.`, …) may be there or not. A weight that two modules share belongs to both.
    """
    named = list(model.named_parameters())
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    layers = group_parameters([name for name, _ in named], "layer")
    modules = _modules(model, [id(p) for _, p in named])
    parameters = {known: [i] for i, (name, _) in enumerate(named) for known in (resolve(name).clean, name)}
    found: set[int] = set()
    for name in names:
        if not isinstance(name, str):
            raise SelectionError(f"{name!r} is a {type(name).__name__}: name a layer, a module or a parameter")
        inside = _first(name, parameters, layers, modules)
        if inside is None:
            raise _unknown(model, name, [*layers, *modules, *parameters])
        if not inside:
            raise SelectionError(f"{name!r} of {type(model).__name__} is a module without parameters")
        found.update(inside)
    return sorted(found)


def check_max_layers(owner: str, most: object) -> None:
    """Refuse what is no number of layers."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ValueError(f"{owner}(max_layers={most!r}): max_layers is a whole number from 1, or None for all layers")


def spread(layers: Iterable[str], most: int | None) -> list[str]:
    """At most so many of the layers, once each, in order: the first, the last, the others evenly between them.

    One alone is the middle one. None stands for all.

    >>> spread([f"h.{i}" for i in range(6)], 3)
    ['h.0', 'h.3', 'h.5']
    """
    named = list(dict.fromkeys(layers))
    if most is None or most >= len(named):
        return named
    if most == 1:
        return [named[(len(named) - 1) // 2]]
    gaps, last = most - 1, len(named) - 1
    return [named[(2 * i * last + gaps) // (2 * gaps)] for i in range(most)]  # i·last/gaps, rounded


def _modules(model: nn.Module, ids: Sequence[int]) -> dict[str, list[int]]:
    """By identity, since a weight that is shared is listed under its first name only."""
    position = {one: i for i, one in enumerate(ids)}
    found: dict[str, list[int]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = [position[id(p)] for p in module.parameters()]
        found.setdefault(_clean(name), inside)
        found[name] = inside
    return found


def _first(name: str, *tables: dict[str, list[int]]) -> list[int] | None:
    for spelt in (name, _clean(name)):
        for table in tables:
            if spelt in table:
                return table[spelt]
    return None


def _clean(name: str) -> str:
    """A module's path without wrappers."""
    return resolve(f"{name}.weight").clean.removesuffix("weight").removesuffix(".") if name else name


def _unknown(model: nn.Module, name: str, known: Iterable[str]) -> SelectionError:
    named = [one for one in dict.fromkeys(known) if one]
    near = difflib.get_close_matches(name, named, n=3) or named[:6]
    return SelectionError(f"{type(model).__name__} has no layer, module or parameter {name!r}; near: {', '.join(near)}")
