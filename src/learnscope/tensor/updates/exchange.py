"""Entries of weights in the memory of the host exchanged with those of an older copy, all in one call of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from learnscope import native
from learnscope.native import Arrays, Kernels
from learnscope.tensor.host import arrays_of
from learnscope.tensor.rows import Group, flat
from learnscope.tensor.updates.fold import rounded_down
from learnscope.tensor.updates.masks import Order, Rule


class HostExchange:
    """What `masks.exchange_entries` does, of all pairs of a model at once."""

    def __init__(self, kernels: Kernels, new: Arrays, old: Arrays, order: Order) -> None:
        self._call, self._kernels, self._order = (new, old, order.shared_ranks, order.offsets), kernels, order

    def exchange(self, now: Rule, then: Rule) -> None:
        """Go from one rule to another."""
        thresholds = np.array([rounded_down(now.threshold), rounded_down(then.threshold)])
        self._kernels.exchange_entries(*self._call, thresholds, now.cuts, then.cuts, torch.get_num_threads())

    def keep_of_changed(self, counts: Sequence[int], changed: int) -> list[Rule]:
        """As `Order.keep_of`, of the entries whose bits differ."""
        threads, present = torch.get_num_threads(), np.empty(len(self._order.lengths), np.int64)
        self._kernels.count_changed(*self._call, present, threads)
        kept = self._order.shares(present.tolist(), counts, changed)
        cuts = np.empty(kept.shape, np.int32)
        self._kernels.cut_changed(*self._call, kept, cuts, threads)
        return [Rule(np.inf, chosen) for chosen in cuts]


def host_exchange(pairs: Sequence[Group], order: Order) -> HostExchange | None:
    """None where there are no kernels, or if they cannot exchange one of the pairs."""
    aligned = [flat(pair) for pair in pairs]
    vectors = [pair for pair in aligned if pair is not None]
    new, old = (arrays_of([pair[side] for pair in vectors]) for side in (0, 1))
    if native.kernels is None or not pairs or len(vectors) != len(pairs) or new is None or old is None:
        return None
    fit = all(array.dtype == np.float32 and array.flags.writeable for array in (*new, *old))
    return HostExchange(native.kernels, new, old, order) if fit else None
