"""A fixed subset of the data, read without touching the loader that trains."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset

from learnscope.model.data import DataError, fixed_batches

X = torch.arange(100.0).view(50, 2)
Y = torch.arange(50)


def labels(batches: list[Any]) -> list[int]:
    return [int(v) for batch in batches for v in batch[1]]


def test_a_shuffling_loader_is_read_in_order_and_not_touched() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, generator=generator)
    state, global_state = generator.get_state(), torch.get_rng_state()
    batches = fixed_batches(loader, examples=20)
    assert labels(batches) == list(range(20))
    assert [len(batch[0]) for batch in batches] == [8, 8, 4], "the loader's own batch size; the last one is cut"
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), global_state)


def test_samplers_and_batch_samplers_are_left_alone() -> None:
    class Counting(RandomSampler):
        used = 0

        def __iter__(self) -> Any:
            Counting.used += 1
            return super().__iter__()

    data = TensorDataset(X, Y)
    by_sampler = DataLoader(data, batch_size=10, sampler=Counting(data))
    batch_sampler = torch.utils.data.BatchSampler(Counting(data), 16, drop_last=True)
    by_batches = DataLoader(data, batch_sampler=batch_sampler)
    assert labels(fixed_batches(by_sampler, examples=12)) == list(range(12))
    assert [len(b[0]) for b in fixed_batches(by_batches)] == [16, 16, 16, 2]
    assert Counting.used == 0


def test_a_loader_mid_epoch_goes_on_where_it_was() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(1))
    expected = [batch[1].tolist() for batch in loader]
    loader.generator.manual_seed(1)  # type: ignore[union-attr]
    seen = []
    for batch in loader:
        fixed_batches(loader, examples=5)
        seen.append(batch[1].tolist())
    assert seen == expected


def test_the_loaders_collate_function_is_used() -> None:
    def collate(items: list[Any]) -> dict[str, Tensor]:
        return {"x": torch.stack([x for x, _ in items]), "y": torch.stack([y for _, y in items])}

    batches = fixed_batches(DataLoader(TensorDataset(X, Y), batch_size=16, collate_fn=collate), examples=18)
    assert [set(batch) for batch in batches] == [{"x", "y"}] * 2
    assert [len(batch["y"]) for batch in batches] == [16, 2]


def test_workers_are_not_started() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, num_workers=2, persistent_workers=True)
    assert labels(fixed_batches(loader, examples=10)) == list(range(10))
    assert loader._iterator is None


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(2) + float(np.random.rand()) + random.random(), index


def test_random_augmentation_draws_no_number_of_the_loops() -> None:
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    batches = fixed_batches(Augmented())
    assert labels(batches) == list(range(30))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]


def test_data_sets_subsets_lists_and_single_batches() -> None:
    data = TensorDataset(X, Y)
    assert labels(fixed_batches(data)) == list(range(50))
    assert labels(fixed_batches(Subset(data, [4, 2, 9]))) == [4, 2, 9]
    pair = (X[:3], Y[:3])
    assert fixed_batches(pair) == [pair]
    assert fixed_batches([pair, (X[3:5], Y[3:5])])[1][1].tolist() == [3, 4]
    listed = fixed_batches([[X[:3], Y[:3]], [X[3:5], Y[3:5]]])
    assert labels(listed) == [0, 1, 2, 3, 4], "batches as lists, as DataLoader gives them"
    words = {"input_ids": torch.ones(4, 6, dtype=torch.int64)}
    assert fixed_batches(words, examples=3)[0]["input_ids"].shape == (3, 6)
    assert fixed_batches(X, examples=5)[0].shape == (5, 2), "a bare tensor is one batch without targets"


def test_wrapped_loaders() -> None:
    """As Accelerate's: not a DataLoader, but with one's attributes."""

    class Wrapper:
        def __init__(self, loader: DataLoader[Any]) -> None:
            self.base = loader
            self.dataset, self.collate_fn, self.batch_size = loader.dataset, loader.collate_fn, loader.batch_size
            self.batch_sampler = loader.batch_sampler

        def __iter__(self) -> Any:
            raise AssertionError("it was iterated")

    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    assert labels(fixed_batches(Wrapper(loader), examples=20)) == list(range(20))


def test_what_would_be_used_up_is_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("it was read")

    for given in (Stream(), DataLoader(Stream(), batch_size=2)):
        with pytest.raises(DataError, match=r"IterableDataset.*list of batches"):
            fixed_batches(given)
    with pytest.raises(DataError, match=r"iterator would be used up.*list of batches"):
        fixed_batches(iter([(X, Y)]))
    with pytest.raises(DataError, match=r"iterator would be used up"):
        fixed_batches(batch for batch in [(X, Y)])


def test_empty_data_are_refused() -> None:
    for empty in ([], TensorDataset(X[:0], Y[:0])):
        with pytest.raises(DataError, match="empty: there is no batch"):
            fixed_batches(empty)


def test_something_else_is_refused_with_a_sketch_of_a_task() -> None:
    with pytest.raises(TypeError, match=r"class MyTask\(learnscope\.Task\)"):
        fixed_batches([{"a": X, "b": Y}])
    with pytest.raises(TypeError, match="no built-in task fits"):
        fixed_batches("batches")
