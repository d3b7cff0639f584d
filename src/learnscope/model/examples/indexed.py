"""Data sets whose items carry their own index, so that an example can be identified in every batch."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from learnscope.model.data import DataError

KEY = "index"


class IndexedDataset(Dataset[Any]):
    """A data set whose items carry their index: `(x, y)` becomes `(x, y, index)`, a dictionary gets `"index"`.

    The index belongs to the item, not to its position in a batch: it survives shuffling, samplers, workers and
    `Subset`. Everything else comes from the wrapped data set. To join data sets, wrap the joined one,
    `IndexedDataset(ConcatDataset([a, b]))`, or let the second start where the first ends (`start=len(a)`).
    A sampler that pads, such as `DistributedSampler`, repeats some items in an epoch, with the same index.

    >>> IndexedDataset([("a", 0), ("b", 1)])[1]
    ('b', 1, 1)
    >>> IndexedDataset([{"x": 5.0, "y": 1}], start=100)[0]
    {'x': 5.0, 'y': 1, 'index': 100}
    """

    def __init__(self, data: Any, *, start: int = 0) -> None:
        if isinstance(data, IterableDataset):
            raise DataError(
                f"{type(data).__name__} is an IterableDataset: its items have no index. If it gives the same items in "
                "the same order in every epoch, wrap it in learnscope.IndexedStream; if not, give the items ids of "
                "their own"
            )
        if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            raise DataError(f"{type(data).__name__} has no items to be indexed: it needs __getitem__ and __len__")
        self._data, self._start = data, start

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        place = self._place(index)
        return with_index(self._data[place], place + self._start)

    def by_index(self, index: int) -> Any:
        """The item that carries this index, which is not its place where `start` is given."""
        if not 0 <= index - self._start < len(self):
            raise IndexError(f"index {index}: the items have {self._start}..{self._start + len(self) - 1}")
        return self[index - self._start]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        # loaders ask for whole batches this way; __getattr__ would pass it on, without the index
        places = [self._place(index) for index in indices]
        inner = getattr(self._data, "__getitems__", None)
        items = [self._data[place] for place in places] if inner is None else inner(places)
        return [with_index(item, place + self._start) for item, place in zip(items, places, strict=True)]

    def __getattr__(self, name: str) -> Any:
        # special methods found by hasattr would bypass the index; _data does not exist while unpickling
        if name.startswith("__") or name == "_data":
            raise AttributeError(name)
        return getattr(self._data, name)

    def _place(self, index: Any) -> int:
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"IndexedDataset is asked for {index!r}; its items are numbered 0..{len(self) - 1}"
            ) from None
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {place} of {len(self)} items")
        return place % len(self)


class IndexedStream(IterableDataset[Any]):
    """The same for a stream, which must give the same items in the same order in every epoch.

    Items are counted. With several workers, each must give its own share of the items (as torch requires of every
    iterable data set): worker w of W numbers its items w, w + W, w + 2W, …, so keep the number of workers the same.
    """

    def __init__(self, data: Any) -> None:
        if not hasattr(data, "__iter__") or isinstance(data, Iterator):
            raise DataError(f"{type(data).__name__} cannot be read more than once: pass an iterable data set")
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, apart = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, item in enumerate(self._data):
            yield with_index(item, first + number * apart)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_data":
            raise AttributeError(name)
        return getattr(self._data, name)


def with_index(item: Any, index: int) -> Any:
    """The item with its index; refuses an item in which the index could be taken for something else."""
    if isinstance(item, Mapping):
        if KEY in item:
            raise DataError(f'the items already have "{KEY}": {sorted(map(str, item))}. Use it as the id, or rename it')
        return {**item, KEY: index}
    if isinstance(item, tuple | list) and len(item) == 2:
        return (*item, index)
    kind = f"{type(item).__name__} of {len(item)}" if isinstance(item, tuple | list) else type(item).__name__
    raise DataError(
        f"an item is a {kind}: an index can be added to (x, y) and to dictionaries. Let the data set return one of them"
    )
