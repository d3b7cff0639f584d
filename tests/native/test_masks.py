"""The kernels that exchange entries of an update: against NumPy, in every build, and refusals that write nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from native_builds import builds, needed

BLOCK = 128
LENGTHS = [1, 0, 127, 128, 129, 300, 16, 5000]
Arrays = list[np.ndarray]


def model(seed: int = 0) -> tuple[Arrays, Arrays, np.ndarray, np.ndarray]:
    """New and old weights with changes of many sizes, ranks, and offsets of blocks."""
    rng = np.random.default_rng(seed)
    old = [rng.normal(size=length).astype(np.float32) for length in LENGTHS]
    steps = [
        rng.normal(size=length) * 10.0 ** -rng.uniform(0, 8, length) * (rng.random(length) < 0.8) for length in LENGTHS
    ]
    new = [(before + step).astype(np.float32) for before, step in zip(old, steps, strict=True)]
    new[4][:3], old[5][:3], old[7][::99], new[7][::77] = np.nan, np.inf, -0.0, 0.0
    blocks = sum(-(-length // BLOCK) for length in LENGTHS)
    return new, old, rng.permutation(BLOCK).astype(np.int32), rng.integers(BLOCK, size=blocks, dtype=np.int32)


def in_blocks(arrays: Arrays) -> Arrays:
    return [array[start : start + BLOCK] for array in arrays for start in range(0, len(array), BLOCK)]


def turned(ranks: np.ndarray, offset: int, length: int) -> np.ndarray:
    return (ranks[:length].astype(np.int64) + offset) % BLOCK


def copies(arrays: Arrays) -> Arrays:
    return [array.copy() for array in arrays]


def expected(new: Arrays, old: Arrays, ranks: np.ndarray, offsets: np.ndarray, rules: Any) -> tuple[Arrays, Arrays]:
    new, old = copies(new), copies(old)
    for block, (after, before) in enumerate(zip(in_blocks(new), in_blocks(old), strict=True)):
        with np.errstate(invalid="ignore"):
            size = np.abs(after - before)
        rank = turned(ranks, offsets[block], len(after))
        reverted = [(size <= np.float32(cut)) & (rank >= (0 if cuts is None else cuts[block])) for cut, cuts in rules]
        chosen = reverted[0] != reverted[1]
        after[chosen], before[chosen] = before[chosen], after[chosen]
    return new, old


def same(one: Arrays, other: Arrays) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@needed
@pytest.mark.parametrize("threads", [1, 3])
def test_entries_are_exchanged_and_come_back(threads: int) -> None:
    new, old, ranks, offsets = model()
    cuts = [np.random.default_rng(seed).integers(BLOCK + 1, size=len(offsets), dtype=np.int32) for seed in range(2)]
    cuts[0][:4], cuts[1][:2] = 0, BLOCK
    keep_all = (-1.0, None)
    chain: list[Any] = [keep_all, (1e-6, None), (1e-3, None), (np.inf, cuts[0]), (np.inf, cuts[1]), (1e-2, cuts[0])]
    for build in builds():
        a, b = copies(new), copies(old)
        for now, then in pairwise([*chain, keep_all]):
            right = expected(a, b, ranks, offsets, (now, then))
            build.exchange_entries(a, b, ranks, offsets, np.array([now[0], then[0]]), now[1], then[1], threads)
            assert same(a, right[0])
            assert same(b, right[1])
        assert same(a, new)
        assert same(b, old)


@needed
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.97, 1.0])
def test_ranks_below_which_so_many_have_changed(share: float) -> None:
    new, old, ranks, offsets = model()
    rng = np.random.default_rng(1)
    old = [np.where(rng.random(len(array)) < share, array + 1, array).astype(np.float32) for array in new]
    masks = [a.view(np.int32) != b.view(np.int32) for a, b in zip(in_blocks(new), in_blocks(old), strict=True)]
    present = np.array([mask.sum() for mask in masks])
    kept = np.array([present, present // 2, np.minimum(present, 1), present * 0])
    for build in builds():
        counted, cuts = np.full(len(offsets), 99, np.int64), np.full(kept.shape, 99, np.int32)
        build.count_changed(new, old, ranks, offsets, counted, 1)
        np.testing.assert_array_equal(counted, present)
        build.cut_changed(new, old, ranks, offsets, kept, cuts, 1)
        for block, mask in enumerate(masks):
            rank = turned(ranks, offsets[block], len(mask))
            for number, cut in zip(kept[:, block], cuts[:, block], strict=True):
                assert (mask & (rank < cut)).sum() == number
                assert cut == 0 or (mask & (rank == cut - 1)).any()


def wrong_calls() -> list[tuple[int, Any]]:
    """The place of an argument of `exchange_entries`, and what does not belong there."""
    new, _, ranks, offsets = model()
    frozen = [array.copy() for array in new]
    frozen[-1].flags.writeable = False
    return [
        (0, new[:-1]), (0, [*new[:-1], new[-1][:-1]]), (0, [*new[:-1], new[-1].astype(np.float64)]), (1, frozen),
        (1, [*new[:-1], np.repeat(new[-1], 2)[::2]]), (2, ranks[:-1]), (2, ranks.astype(np.int64)), (2, ranks + 1),
        (2, np.arange(2**16, dtype=np.int32)), (3, offsets[1:]), (3, offsets + BLOCK), (3, offsets - BLOCK),
        (4, np.zeros(3)), (4, np.zeros(2, np.float32)), (5, offsets[1:]), (6, offsets.astype(np.int64)), (7, "1"),
    ]  # fmt: skip


@needed
@pytest.mark.parametrize(("place", "value"), wrong_calls())
def test_what_does_not_fit_is_refused(place: int, value: Any) -> None:
    for build in builds():
        new, old, ranks, offsets = model()
        given: list[Any] = [new, old, ranks, offsets, np.array([-1.0, np.inf]), None, None, 1]
        given[place] = value
        with pytest.raises((TypeError, ValueError, BufferError)):
            build.exchange_entries(*given)
        assert same(new, model()[0])
        assert same(old, model()[1])
        with pytest.raises((TypeError, ValueError)):
            build.count_changed(new, old, ranks, offsets, np.zeros(3, np.int64), 1)
        with pytest.raises((TypeError, ValueError)):
            build.cut_changed(new, old, ranks, offsets, np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int32), 1)
