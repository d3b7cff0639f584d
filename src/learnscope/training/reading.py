"""Data sets from files, folders and the hub, as `datasets.Dataset`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk  # type: ignore[import-untyped]

from learnscope.training.config import DatasetConfig
from learnscope.training.errors import TrainError, first_line
from learnscope.training.hub import hub_reason

FILES = (".jsonl", ".json", ".csv", ".parquet")
_SPLIT = re.compile(r"([\w.-]+)(?:\[\s*(\d+%?)?\s*:\s*(\d+%?)?\s*\])?")


def read(config: DatasetConfig) -> Any:
    """The rows that are asked for; a data set that cannot be read is refused with the reason."""
    given = config.dataset_name_or_path
    assert given is not None
    path = Path(given)
    if path.is_file():
        rows = _sliced(_file(path), config.split, name="train", where=given)
    elif path.is_dir():
        rows = _folder(path, config.split)
    elif path.suffix in FILES or given.startswith((".", "/", "~")):
        raise TrainError(f"config.dataset.dataset_name_or_path: there is no file or folder {given}")
    else:
        rows = _from_hub(config)
    if len(rows) == 0:
        raise TrainError(f"{given} has no examples in split {config.split!r}")
    return rows


def _file(path: Path) -> Any:
    try:
        if path.suffix in (".jsonl", ".json"):
            return Dataset.from_list(_json_rows(path))
        if path.suffix == ".csv":
            import pandas as pd

            return Dataset.from_pandas(pd.read_csv(path, dtype=str, keep_default_na=False), preserve_index=False)
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq  # type: ignore[import-untyped]

            return Dataset(pq.read_table(path))
    except TrainError:
        raise
    except (ValueError, OSError, TypeError) as error:  # pyarrow's and pandas' errors are ValueErrors
        raise TrainError(f"{path} cannot be read as {path.suffix[1:]}: {first_line(error)}") from None
    raise TrainError(f"{path}: files end with {', '.join(FILES)}")


def _json_rows(path: Path) -> list[dict[str, Any]]:
    """A list of objects, or one object a line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        body = json.loads(text)
        if not isinstance(body, list):
            raise TrainError(f"{path}: a list of objects is needed, one for each example")
        numbered = list(enumerate(body, 1))
    else:
        numbered = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    numbered.append((number, json.loads(line)))
                except json.JSONDecodeError as error:
                    raise TrainError(f"{path}, line {number} is not JSON ({error.msg}): mend or remove it") from None
    for number, row in numbered:
        if not isinstance(row, dict):
            raise TrainError(f"{path}, {'line' if path.suffix == '.jsonl' else 'entry'} {number}: not an object")
    return [row for _, row in numbered]


def _folder(path: Path, split: str) -> Any:
    try:
        loaded = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise TrainError(
            f"{path} is no folder that Dataset.save_to_disk wrote ({first_line(error)}); "
            f"name a file ({', '.join(FILES)}) or such a folder"
        ) from None
    if not isinstance(loaded, DatasetDict):
        return _sliced(loaded, split, name="train", where=str(path))
    name = _parts(split)[0]
    if name not in loaded:
        raise TrainError(f"config.dataset.split: {path} has no split {name!r}; it has {', '.join(loaded)}")
    return _sliced(loaded[name], split, name=name, where=str(path))


def _from_hub(config: DatasetConfig) -> Any:
    _parts(config.split)
    try:
        return load_dataset(config.dataset_name_or_path, config.name, split=config.split)
    except Exception as error:  # noqa: BLE001  (the hub, the network and the format each raise their own)
        raise TrainError(
            f"data set {config.dataset_name_or_path!r}: there is no such file or folder here, and {hub_reason(error)}"
        ) from None


def _sliced(rows: Any, split: str, *, name: str, where: str) -> Any:
    asked, first, last = _parts(split)
    if asked != name:
        raise TrainError(f"config.dataset.split: {where} is one set of rows, called 'train', not {asked!r}")
    count = len(rows)
    begin, end = _place(first, count, 0), _place(last, count, count)
    return rows if (begin, end) == (0, count) else rows.select(range(begin, max(begin, end)))


def _parts(split: str) -> tuple[str, str | None, str | None]:
    found = _SPLIT.fullmatch(split.strip())
    if found is None:
        raise TrainError(
            f"config.dataset.split: {split!r} is not understood; write train, train[:1000] or train[10%:20%]"
        )
    return found[1], found[2], found[3]


def _place(written: str | None, count: int, otherwise: int) -> int:
    if written is None:
        return otherwise
    place = round(count * int(written[:-1]) / 100) if written.endswith("%") else int(written)
    return min(place, count)
