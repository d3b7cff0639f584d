"""Random choices of entries: exactly as many as asked, equally likely, the same when asked again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learnscope.tensor.updates import masks
from learnscope.tensor.updates.masks import Order, Rule

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "BLOCK", 64)


def ranks(order: Order) -> list[np.ndarray]:
    """The ranks of the entries of every block, by their definition."""
    shared = order.ranks(slice(None), CPU).shared.numpy()
    pairs = zip(order.offsets, order.lengths, strict=True)
    return [(shared.astype(np.int64) + offset)[:length] % 64 for offset, length in pairs]


def kept(order: Order, rule: Rule) -> np.ndarray:
    """Which entries a rule keeps."""
    assert rule.cuts is not None
    blocks = [block < cut for block, cut in zip(ranks(order), rule.cuts, strict=True)]
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=bool)


def by_block(mask: np.ndarray, order: Order) -> list[np.ndarray]:
    return np.split(mask, np.cumsum(order.lengths)[:-1])


LENGTHS = [[1], [5], [63], [64], [65], [640], [1000], [3, 1, 700, 0, 64, 65, 2], []]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("seed", range(5))
def test_exactly_as_many_of_all_entries(lengths: list[int], seed: int) -> None:
    order, entries = Order(lengths, seed), sum(lengths)
    counts = sorted({0, entries and 1, entries // 3, entries // 2, max(0, entries - 1), entries})
    for count, rule in zip(counts, order.keep(counts), strict=True):
        assert kept(order, rule).sum() == count


@pytest.mark.parametrize("share", [0.01, 0.3, 0.97])
@pytest.mark.parametrize("seed", range(10))
def test_exactly_as_many_of_the_candidates(share: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    candidates = draw.random(1500) < share
    total = int(candidates.sum())
    order = Order([700, 30, 770], seed)
    counts = [0, 1, total // 2, max(0, total - 1), total]
    for count, rule in zip(counts, order.keep_of(by_block(candidates, order), counts, total), strict=True):
        assert (kept(order, rule) & candidates).sum() == count


def test_candidates_in_a_few_blocks_only() -> None:
    candidates = np.zeros(640, dtype=bool)
    candidates[130:140] = candidates[600:601] = True
    order = Order([640], 3)
    (rule,) = order.keep_of(by_block(candidates, order), [6], 11)
    assert (kept(order, rule) & candidates).sum() == 6


def deviations(times: np.ndarray, draws: int, probability: float) -> np.ndarray:
    """Of how often each was kept, in standard deviations."""
    return np.asarray((times - draws * probability) / np.sqrt(draws * probability * (1 - probability)))


def test_every_entry_is_equally_likely() -> None:
    """Also in blocks that are not full, down to a tensor of 3: there nothing but chance moves an entry forward."""
    lengths = [3, 7, 64, 100, 26]
    times = np.zeros(200)
    for seed in range(3000):
        order = Order(lengths, seed)
        times += kept(order, order.keep([40])[0])
    found = deviations(times, 3000, 0.2)
    assert abs(found).max() < 5
    assert 0.6 < (found**2).mean() < 1.4


def test_every_candidate_is_equally_likely() -> None:
    candidates = np.zeros(200, dtype=bool)
    candidates[[1, 5, 6, 20, 63, 64, 90, 130, 131, 132, 133, 199]] = True
    times = np.zeros(12)
    for seed in range(3000):
        order = Order([200], seed)
        (rule,) = order.keep_of(by_block(candidates, order), [3], 12)
        times += kept(order, rule)[candidates]
    assert abs(deviations(times, 3000, 0.25)).max() < 5


def test_two_entries_of_a_short_tensor_are_not_kept_together_more_often_than_others() -> None:
    """3 of 9 at a time: any two together in 3/9·2/8 = 1/12 of the draws."""
    together = np.zeros((9, 9))
    for seed in range(3000):
        order = Order([9], seed)
        mask = kept(order, order.keep([3])[0])
        together += np.outer(mask, mask)
    pairs = together[np.triu_indices(9, 1)]
    assert abs(deviations(pairs, 3000, 1 / 12)).max() < 5


def test_entries_of_two_blocks_are_chosen_independently() -> None:
    """3000 draws of half of two blocks: any two entries, one of each, are kept together a quarter of the time.

    Each share has a standard error of 0.008; of 4096 pairs the largest should stay within 5 of those. Between
    entries of one block nothing is promised but that the shared permutation is a random one.
    """
    together = np.zeros((64, 64))
    for seed in range(3000):
        order = Order([128], seed)
        left, right = by_block(kept(order, order.keep([64])[0]), order)
        together += np.outer(left, right)
    assert abs(together / 3000 - 0.25).max() < 5 * 0.008


def test_other_seeds_give_other_choices_and_the_same_seed_the_same() -> None:
    first, again, other = (kept(order, order.keep([500])[0]) for order in (Order([1000], s) for s in (1, 1, 2)))
    assert (first == again).all()
    # two random halves of 1000 agree on about half, ± 16
    assert 400 < (first == other).sum() < 600


def test_neighbouring_blocks_are_not_chosen_alike() -> None:
    order = Order([64 * 20], 0)
    rows = kept(order, order.keep([64 * 10])[0]).reshape(20, 64)
    # of 64 offsets some coincide; those of real blocks are 32768
    assert len({row.tobytes() for row in rows}) > 10


def test_a_block_has_every_rank_once() -> None:
    for block in ranks(Order([640, 100], 5)):
        assert len(set(block)) == len(block)
        assert len(block) < 64 or sorted(block) == list(range(64))


@pytest.mark.parametrize("entries", [1, 40, 64, 65, 128, 150, 192])
def test_ranks_are_compared_with_cuts_by_their_definition(entries: int) -> None:
    order = Order([entries], 5)
    of_order = order.ranks(slice(None), CPU)
    cuts = torch.tensor([[30.0], [0.0], [64.0]])[: len(of_order.offsets)]
    expected = [block >= cut for block, cut in zip(ranks(order), cuts.numpy(), strict=True)]
    assert of_order.at_least(cuts, entries).tolist() == np.concatenate(expected).tolist()
