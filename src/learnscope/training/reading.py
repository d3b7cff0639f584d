"""Data sets from files, folders and the hub, as `datasets.Dataset`."""

from __future__ import annotations

from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]

from learnscope.sources import SourceError, read_rows
from learnscope.training.errors import TrainError
from learnscope.training.settings.config import DatasetConfig

FILES = (".jsonl", ".json", ".csv", ".parquet")
_OPTIONS = {"name": "config.dataset.dataset_name_or_path: ", "split": "config.dataset.split: "}


def read(config: DatasetConfig) -> Any:
    """The rows of the configured data set; a `TrainError` with the reason if it cannot be read."""
    given = config.dataset_name_or_path
    assert given is not None
    try:
        rows = read_rows(given, split=config.split, name=config.name, only="train", endings=FILES)
    except SourceError as error:
        raise TrainError(f"{_OPTIONS.get(error.about or '', '')}{error}") from None
    return Dataset.from_list(rows) if isinstance(rows, list) else rows
