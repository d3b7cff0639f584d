"""Selecting parameters by the name of a layer, a module or a parameter; and choosing a few layers of many."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from learnscope.names import clean_path, group_parameters, resolve
from learnscope.options import is_whole, nearest


class SelectionError(ValueError):
    """A name that matches no parameter of the model; the message lists close names."""


def select_parameters(model: nn.Module, names: str | Iterable[str]) -> list[int]:
    """Positions in `model.named_parameters()` of the parameters that the names select, in order, each once.

    A name is that of a layer, of a module as in `model.named_modules()`, or of a parameter, with or without what
    wrappers add (`module.`, `_orig_mod.`, …). A weight that two modules share belongs to both.
    """
    named = list(model.named_parameters())
    layers = group_parameters([name for name, _ in named], "layer")
    position = {id(p): i for i, (_, p) in enumerate(named)}
    modules: dict[str, list[int]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        modules[path] = [position[id(p)] for p in module.parameters()]
        modules.setdefault(clean_path(path), modules[path])
    parameters = {spelling: [i] for i, (name, _) in enumerate(named) for spelling in (resolve(name).clean, name)}
    selected: set[int] = set()
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str):
            raise SelectionError(f"{name!r} is a {type(name).__name__}: name a layer, a module or a parameter")
        spellings, tables = (name, clean_path(name)), (parameters, layers, modules)
        members = next((table[spelling] for spelling in spellings for table in tables if spelling in table), None)
        if members is None:
            others = [other for other in dict.fromkeys([*layers, *modules, *parameters]) if other]
            near = ", ".join(nearest(name, others, most=3) or others[:6])
            raise SelectionError(f"{type(model).__name__} has no layer, module or parameter {name!r}; near: {near}")
        if not members:
            raise SelectionError(f"{name!r} of {type(model).__name__} is a module without parameters")
        selected.update(members)
    return sorted(selected)


def check_pattern(model: nn.Module, owner: str, pattern: str | None) -> None:
    """Refuse a regular expression that is none, or that is found in no parameter's name; None selects all."""
    if pattern is None:
        return
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise ValueError(f"{owner}(parameters={pattern!r}) is no regular expression: {error}") from error
    names = [name for name, _ in model.named_parameters()]
    if not any(map(search, names)):
        near = ", ".join(nearest(pattern, names, most=3) or names[:3])
        raise ValueError(f"{owner}(parameters={pattern!r}) is found in none of the parameters' names; near: {near}")


def check_max_layers(owner: str, most: object) -> None:
    """Refuse a `max_layers` that is not a whole number from 1, or None."""
    if most is not None and not is_whole(most, 1):
        raise ValueError(f"{owner}(max_layers={most!r}): max_layers is a whole number from 1, or None for all layers")


def spread(layers: Iterable[str], most: int | None) -> list[str]:
    """At most `most` of the layers, each once, in order: the first, the last, and others evenly between them.

    With `most=1` it is the middle one; None keeps all.

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
