"""Which examples of the training set a batch has: numbers that travel with it from the loader to the step.

Trainers drop columns that the model does not take (`remove_unused_columns`), and so do collators: the places that the
sampler draws are put into the batch behind the collator, and taken out before the trainer's step sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

KEY = "learnscope_example_ids"


class Numbered(Dataset[Any]):
    """A data set whose examples come with their places."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return self.dataset[index], index

    def __getitems__(self, indices: Sequence[Any]) -> list[tuple[Any, Any]]:
        together = getattr(self.dataset, "__getitems__", None)
        items = together(indices) if together else [self.dataset[index] for index in indices]
        return list(zip(items, indices, strict=True))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # asked for while it is copied to a worker
            raise AttributeError(name)
        return getattr(self.dataset, name)


class NumberedBatch:
    """A collator with the places of the examples in what it makes."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, numbered: Sequence[tuple[Any, Any]]) -> Any:
        items, places = [item for item, _ in numbered], [int(place) for _, place in numbered]
        batch = self.collate(items)
        if isinstance(batch, MutableMapping):
            batch[KEY] = torch.tensor(places)
        elif is_rows(batch) and len(batch) == len(places):
            return [{**row, KEY: place} for row, place in zip(batch, places, strict=True)]
        return batch


def is_rows(batch: Any) -> bool:
    """Whether a batch is a list of rows, as for trainers that generate."""
    return isinstance(batch, list) and all(isinstance(row, Mapping) for row in batch)


def take_ids(batch: Any) -> Tensor | None:
    """The places, out of a batch that was made for a step; None if it has none."""
    if isinstance(batch, MutableMapping):
        found = batch.pop(KEY, None)
        return found if isinstance(found, Tensor) else None
    if is_rows(batch) and batch and all(KEY in row for row in batch):
        return torch.tensor([row.pop(KEY) for row in batch])
    return None


class NumberedLoader:
    """A training loader whose batches carry places, until `restore`."""

    def __init__(self, loader: Any) -> None:
        self._loader: Any = getattr(loader, "base_dataloader", loader)  # Accelerate's holds the one that is iterated
        self._theirs = self._loader.dataset, self._loader.collate_fn
        self._put(Numbered(self._theirs[0]), NumberedBatch(self._theirs[1]))

    def restore(self) -> None:
        self._put(*self._theirs)

    def _put(self, dataset: Any, collate: Any) -> None:
        # torch refuses another data set by assignment, since its sampler would not know of it: this one is as long
        self._loader.__dict__.update(dataset=dataset, collate_fn=collate)


def without_ids(loader: Any) -> str | None:
    """Why the batches of a training loader cannot carry places; None if they can."""
    base = getattr(loader, "base_dataloader", loader)
    if not isinstance(base, DataLoader):
        return f"its batches come from a {type(loader).__name__}, not from a torch DataLoader"
    if isinstance(base.dataset, IterableDataset):
        return "the training set is a stream, whose examples have no places; pass a data set with a length"
    return "its loader makes no batches (batch_size=None)" if base.batch_sampler is None else None
