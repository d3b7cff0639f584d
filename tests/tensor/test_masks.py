"""Random choices of entries: exactly as many as asked, equally likely, the same when asked again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learnscope.tensor import masks
from learnscope.tensor.masks import Order, Rule

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "BLOCK", 64)


def kept(order: Order, rule: Rule) -> np.ndarray:
    """Which entries a rule keeps, by its definition."""
    out = []
    for block in range(order.blocks):
        length = min(64, order.entries - block * 64)
        out.append(order.ranks(block, 0, length, CPU).numpy() < rule.cut(block))
    return np.concatenate(out) if out else np.zeros(0, dtype=bool)


def by_block(mask: np.ndarray) -> list[np.ndarray]:
    return [mask[start : start + 64] for start in range(0, len(mask), 64)]


@pytest.mark.parametrize("entries", [1, 5, 63, 64, 65, 640, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_exactly_as_many_of_all_entries(entries: int, seed: int) -> None:
    order = Order(entries, seed)
    counts = sorted({0, 1, entries // 3, entries // 2, entries - 1, entries})
    for count, rule in zip(counts, order.keep(counts), strict=True):
        assert kept(order, rule).sum() == count


@pytest.mark.parametrize("share", [0.01, 0.3, 0.97])
@pytest.mark.parametrize("seed", range(10))
def test_exactly_as_many_of_the_candidates(share: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    candidates = draw.random(1500) < share
    total = int(candidates.sum())
    order = Order(1500, seed)
    counts = [0, 1, total // 2, max(0, total - 1), total]
    for count, rule in zip(counts, order.keep_of(by_block(candidates), counts, total), strict=True):
        assert (kept(order, rule) & candidates).sum() == count


def test_candidates_in_a_few_blocks_only() -> None:
    candidates = np.zeros(640, dtype=bool)
    candidates[130:140] = candidates[600:601] = True
    order = Order(640, 3)
    (rule,) = order.keep_of(by_block(candidates), [6], 11)
    assert (kept(order, rule) & candidates).sum() == 6


def test_every_entry_is_equally_likely() -> None:
    """400 draws of 30 of 150 entries: each is kept about 80 times, with a spread of √(400·0.2·0.8) = 8."""
    times = np.zeros(150)
    for seed in range(400):
        order = Order(150, seed)
        times += kept(order, order.keep([30])[0])
    assert abs(times - 80).max() < 5 * 8
    assert times.std() < 12


def test_other_seeds_give_other_choices_and_the_same_seed_the_same() -> None:
    first, again, other = (kept(order, order.keep([500])[0]) for order in (Order(1000, s) for s in (1, 1, 2)))
    assert (first == again).all()
    # two random halves of 1000 agree on about half, ± 16
    assert 400 < (first == other).sum() < 600


def test_neighbouring_blocks_are_not_chosen_alike() -> None:
    order = Order(64 * 20, 0)
    rows = kept(order, order.keep([64 * 10])[0]).reshape(20, 64)
    # of 64 offsets some coincide; those of real blocks are a million
    assert len({row.tobytes() for row in rows}) > 10


def test_parts_of_a_block_have_the_ranks_of_the_whole() -> None:
    order = Order(640, 5)
    whole = order.ranks(4, 0, 64, CPU)
    assert torch.equal(torch.cat([order.ranks(4, 0, 17, CPU), order.ranks(4, 17, 47, CPU)]), whole)
    assert sorted(whole.tolist()) == list(range(64))
