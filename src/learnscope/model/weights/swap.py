"""Exchanging weights in place, with no second copy of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

CHUNK = 1 << 20
"""Entries exchanged at a time: the only memory that an exchange needs."""


@torch.no_grad()
def exchange(a: Tensor, b: Tensor) -> None:
    """Swap the contents of two tensors of one shape and dtype; doing it twice restores both bit for bit.

    It writes through `.data`, so that a pending backward through `a` still works.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"cannot exchange {tuple(a.shape)} {a.dtype} with {tuple(b.shape)} {b.dtype}: both must agree")
    left, right = a.data, b.data
    parts = [(left, right)]
    if left.is_contiguous() and right.is_contiguous():
        parts = list(zip(left.view(-1).split(CHUNK), right.view(-1).split(CHUNK), strict=True))
    for old, new in parts:
        copy = old.clone()
        old.copy_(new)
        new.copy_(copy)


def named_parameters(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    """The parameters with these names, looked up one by one: listing all takes longer than exchanging a few."""
    parameters: dict[str, nn.Parameter] = {}
    unknown: list[str] = []
    for name in names:
        try:
            parameters[name] = model.get_parameter(name)
        except AttributeError:
            unknown.append(name)
    if unknown:
        raise KeyError(f"the model has no parameter {unknown[0]!r} ({len(unknown)} such names)")
    return parameters


@contextmanager
def swapped(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """`model` with `weights` in place of its own, which `weights` holds meanwhile; use it under the guard."""
    parameters = named_parameters(model, weights)
    done: list[str] = []
    try:
        for name, value in weights.items():
            exchange(parameters[name], value)
            done.append(name)
        torch.clear_autocast_cache()
        yield
    finally:
        for name in reversed(done):
            exchange(parameters[name], weights[name])
        torch.clear_autocast_cache()
