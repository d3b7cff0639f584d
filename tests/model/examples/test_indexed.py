"""Items keep their index wherever they come up."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import learnscope as ls
from learnscope.model.data import DataError

N = 37


class Numbers(Dataset[Any]):
    """Item i is recognisable by its x."""

    classes = ("even", "odd")

    def __init__(self, as_dict: bool = False, n: int = N) -> None:
        self.as_dict, self.n = as_dict, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        x, y = torch.tensor([10.0 * i]), i % 2
        return {"x": x, "y": y} if self.as_dict else (x, y)


class Batched(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


class Stream(IterableDataset[Any]):
    """Shares its items out among workers, as such data sets must."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, apart = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter([(torch.tensor([10.0 * i]), i % 2) for i in range(first, N, apart)])


def seen(loader: DataLoader[Any]) -> list[int]:
    """The ids of an epoch, as a task reads them; each is checked to be that of its item."""
    found: list[int] = []
    for batch in loader:
        task = ls.TupleTask() if isinstance(batch, (tuple, list)) else ls.DictTask()
        ids = task.ids(batch)
        assert ids is not None
        x: Tensor = batch["x"] if isinstance(batch, dict) else batch[0]
        assert torch.equal(x[:, 0], 10.0 * ids)
        found += ids.tolist()
    return found


@pytest.mark.parametrize("data", [Numbers(), Numbers(as_dict=True), Batched(), Batched(as_dict=True)])
@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_and_workers(data: Numbers, workers: int) -> None:
    loader = DataLoader(ls.IndexedDataset(data), batch_size=5, shuffle=True, num_workers=workers)
    first, second = seen(loader), seen(loader)
    assert sorted(first) == sorted(second) == list(range(N))
    assert first != second


def test_samplers_and_subsets() -> None:
    indexed = ls.IndexedDataset(Numbers())
    drawn = seen(DataLoader(indexed, 8, sampler=WeightedRandomSampler([1.0] * N, 100)))
    assert len(drawn) == 100
    assert sorted(seen(DataLoader(Subset(indexed, [30, 2, 7]), 2, shuffle=True))) == [2, 7, 30]
    ranks = [seen(DataLoader(indexed, 4, sampler=DistributedSampler(indexed, 4, r))) for r in range(4)]
    together = sorted(i for rank in ranks for i in rank)
    assert len(together) == 40  # padded: three items come up twice, under the same index
    assert set(together) == set(range(N))


def test_joined_data_sets() -> None:
    joined = ls.IndexedDataset(ConcatDataset([Numbers(n=20), Numbers(n=10)]))
    assert [joined[i][2] for i in (0, 19, 20, 29)] == [0, 19, 20, 29]
    parts: ConcatDataset[Any] = ConcatDataset(
        [ls.IndexedDataset(Numbers(n=20)), ls.IndexedDataset(Numbers(n=10), start=20)]
    )
    assert [parts[i][2] for i in range(30)] == list(range(30))


def test_it_is_the_wrapped_data_set_otherwise() -> None:
    indexed = ls.IndexedDataset(Numbers())
    assert indexed.classes == ("even", "odd")
    assert len(indexed) == N
    assert indexed[-1][2] == N - 1
    assert indexed[torch.tensor(3)][2] == 3
    with pytest.raises(IndexError):
        indexed[N]
    with pytest.raises(TypeError, match="numbered 0"):
        indexed["a"]
    with pytest.raises(AttributeError):
        indexed.nothing_of_this_name  # noqa: B018
    copy = pickle.loads(pickle.dumps(indexed))
    assert copy[4][2] == 4
    assert copy.n == N


def test_streams_are_refused_or_counted() -> None:
    with pytest.raises(DataError, match=r"IterableDataset.*IndexedStream"):
        ls.IndexedDataset(Stream())
    stream = pickle.loads(pickle.dumps(ls.IndexedStream(Stream())))
    for workers in (0, 2):
        loader = DataLoader(stream, batch_size=4, num_workers=workers)
        assert sorted(seen(loader)) == sorted(seen(loader)) == list(range(N))
    with pytest.raises(DataError, match="more than once"):
        ls.IndexedStream(iter([1]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TensorDataset(torch.zeros(3, 1)), "tuple of 1"),
        (TensorDataset(*[torch.zeros(3)] * 3), "tuple of 3"),
        ([torch.zeros(2)], "Tensor"),
        ([{"x": 1, "index": 5}], "already have"),
    ],
)
def test_items_that_would_be_misread_are_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ls.IndexedDataset(data)[0]
    with pytest.raises(DataError, match="__getitem__"):
        ls.IndexedDataset({1, 2})
