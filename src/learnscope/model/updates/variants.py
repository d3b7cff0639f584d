"""A model with part of its last update undone, entry by entry in place, and restored bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.model.weights.checkpoint import memory_of, overlapping, span_of
from learnscope.model.weights.rounded import RoundedWeights
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.kernels import wants_compiler
from learnscope.tensor.rows import flat
from learnscope.tensor.updates.exchange import host_exchange
from learnscope.tensor.updates.fold import bits_differ
from learnscope.tensor.updates.masks import KEEP_ALL, Order, Rule, exchange_entries

_EXACT = {
    torch.float16: {torch.float32, torch.float64},
    torch.bfloat16: {torch.float32, torch.float64},
    torch.float32: {torch.float64},
}
"""For each dtype the other dtypes that hold all its values. (Neither half dtype holds those of the other.)"""

CHUNK = 1 << 18
"""Entries exchanged at a time with plain operations: 1 MiB of float32, which stays in the cache."""

COMPILED_PART = 1 << 24
"""Entries exchanged by one call of a compiled kernel."""

COMPILED_FROM = 1 << 16
"""For shorter tensors a call of a compiled kernel does not pay."""


class Part(NamedTuple):
    """Entries of one weight and of its older copy: whole blocks, except at the end of a weight."""

    new: Tensor
    old: Tensor
    blocks: slice


class Reverting:
    """Exchanges entries between a model's weights and an older copy of them.

    If a rule reverts an entry, the weight takes the old value and the copy holds the new one, so that no
    other memory is needed. Going from one rule to the next exchanges only the entries on which they differ. Use it as
    a context manager under the guard: on exit both are restored, also after an error.

    A copy that cannot hold a weight exactly (float16 of float32), or whose values the weight cannot hold (float32 from
    before the model became bfloat16), is replaced by a temporary copy in the weight's dtype, which takes `extra_bytes`.
    """

    def __init__(self, weights: Mapping[str, Tensor], old: Mapping[str, Tensor], *, seed: int = 0) -> None:
        self.extra_bytes = 0
        self.rounded = False
        """Whether old values had to be rounded to fit their weights."""
        self.weights = with_own_memory({name: weights[name].data for name in old})
        self.old: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            copy = old[name]
            made = isinstance(old, RoundedWeights) and name in old.rounded
            fits = values_fit(copy, weight.dtype)
            self.rounded |= not fits
            if copy.dtype != weight.dtype and (copy.dtype not in _EXACT.get(weight.dtype, ()) or not fits):
                copy, made = copy.to(weight.dtype), True
            self.extra_bytes += copy.nbytes if made else 0
            self.old[name] = copy
        self._pairs = [(weight, self.old[name]) for name, weight in self.weights.items()]
        self._device = self._pairs[0][0].device if self._pairs else torch.device("cpu")
        self.entries = sum(weight.numel() for weight, _ in self._pairs)
        self.order = Order([weight.numel() for weight, _ in self._pairs], seed)
        self._on_host = host_exchange(self._pairs, self.order)
        self._compiled = self._on_host is None and wants_compiler(self.entries, "auto")
        self._rule = self._next = KEEP_ALL
        self._done = 0
        """Entries that already follow the next rule, while it is being applied."""

    def __enter__(self) -> Reverting:
        return self

    def __exit__(self, *_error: object) -> None:
        self.restore()

    def apply(self, rule: Rule) -> None:
        """Undo exactly the entries of the last update that `rule` reverts."""
        if self._on_host is not None:
            self._on_host.exchange(self._rule, rule)
            self._rule = self._next = rule
            torch.clear_autocast_cache()
            return
        self._next, self._done = rule, 0
        with plain_arithmetic(self._device):
            for part in self._parts():
                self._exchange(part, self._rule, rule)
                self._done += part.new.numel()
        self._rule = rule
        # inside the user's autocast, cached casts of the old weights would be used again
        torch.clear_autocast_cache()

    def restore(self) -> None:
        """Put the whole update back."""
        if self._on_host is not None:
            self._on_host.exchange(self._rule, KEEP_ALL)
        elif not (self._rule is self._next is KEEP_ALL):
            with plain_arithmetic(self._device):
                done = 0
                for part in self._parts():
                    self._exchange(part, self._next if done < self._done else self._rule, KEEP_ALL)
                    done += part.new.numel()
        self._rule = self._next = KEEP_ALL
        torch.clear_autocast_cache()

    def keep_of_changed(self, counts: list[int], changed: int) -> list[Rule]:
        """One rule per count, which keeps that many of the `changed` entries whose stored bits differ."""
        if self._on_host is not None:
            return self._on_host.keep_of_changed(counts, changed)
        return self.order.keep_of(self._changed(), counts, changed)

    def count_changed(self) -> int:
        """Entries whose stored bits differ."""
        return sum(int(np.count_nonzero(mask)) for mask in self._changed())

    def _changed(self) -> Iterator[NDArray[np.bool_]]:
        """For each block, which entries differ in their stored bits."""
        for part in self._parts():
            mask = bits_differ(part.new, part.old.to(part.new.device)).cpu().numpy()
            for start in range(0, len(mask), self.order.block):
                yield mask[start : start + self.order.block]

    def _exchange(self, part: Part, now: Rule, then: Rule) -> None:
        device = part.new.device
        ranks = self.order.ranks(part.blocks, device)
        bounds = [rule.bounds(part.blocks, device) for rule in (now, then)]
        near = part.old.to(device)  # the copy itself if it is on the same device
        compiled = self._compiled and part.new.numel() >= COMPILED_FROM
        exchange_entries(part.new, near, ranks, *bounds, compiled=compiled)
        if near is not part.old:
            part.old.copy_(near)

    def _parts(self) -> Iterator[Part]:
        """All entries in order, in parts that are exchanged as a whole."""
        block = self.order.block
        for index, (weight, copy) in enumerate(self._pairs):
            length, first = weight.numel(), self.order.first[index]
            large = self._compiled and length >= COMPILED_FROM
            step = max(block, COMPILED_PART if large else CHUNK)
            # for a compiled kernel, entries beyond the last full block are a part of their own
            full = length - length % block if large else length
            with _as_vectors(weight, copy) as (new, old):
                edges = [*range(0, full, step), full, *([length] if full < length else [])]
                for start, stop in pairwise(edges):
                    blocks = slice(first + start // block, first - (-stop // block))
                    yield Part(new[start:stop], old[start:stop], blocks)


def values_fit(copy: Tensor, dtype: torch.dtype) -> bool:
    """Whether a weight of this dtype can hold every value of a copy. (A NaN counts as not fitting.)"""
    if copy.dtype == dtype or dtype in _EXACT.get(copy.dtype, ()):
        return True
    return all(torch.equal(part.to(dtype).to(part.dtype), part) for part in copy.reshape(-1).split(CHUNK))


def with_own_memory(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights without second names of the same memory; refuses a partial overlap, which could not be restored."""
    # an address of 0: no memory, or a wrapper (DTensor) that does not give it
    located: dict[tuple[object, ...], str] = {}
    for name, weight in weights.items():
        if weight.data_ptr() and memory_of(weight) not in located:
            located[memory_of(weight)] = name
            if span_of(weight) < weight.numel():
                raise ValueError(f"entries of {name} share memory (it is an expanded tensor): they have no own changes")
    names = set(located.values())
    for name, other in overlapping({name: weights[name] for name in names}):
        raise ValueError(f"{name} and {other} share part of their memory: their changes cannot be undone apart")
    return {name: weight for name, weight in weights.items() if name in names or not weight.data_ptr()}


@contextmanager
def _as_vectors(weight: Tensor, copy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both as vectors: views if their layout allows it, otherwise copies that are written back."""
    vectors = flat((weight, copy))
    if vectors is not None:
        yield vectors[0], vectors[1]
        return
    new, old = weight.reshape(-1).clone(), copy.reshape(-1).clone()
    try:
        yield new, old
    finally:
        weight.copy_(new.view(weight.shape))
        copy.copy_(old.view(copy.shape))
