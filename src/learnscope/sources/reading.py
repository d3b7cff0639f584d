"""Rows of data: from a file, from a folder that `Dataset.save_to_disk` wrote, or from the hub."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learnscope.sources.errors import SourceError, first_line
from learnscope.sources.files import FILES, near_names, read_file
from learnscope.sources.hub import hub_reason

_SPLIT = re.compile(r"([\w.-]+)?(?:\[\s*(\d+%?)?\s*:\s*(\d+%?)?\s*\])?")
USUAL = ("validation", "test", "train")
"""Which split to use if none is named: preferably one that was probably not trained on."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a data set: `train`, `train[:1000]`, `validation[10%:20%]`, `[:100]`.

    `name` may be None, for whichever split there is; `first` and `last` are kept as they were written.

    >>> Split.parse("validation[10%:50]").rows(200)
    range(20, 50)
    """

    name: str | None
    first: str | None = None
    last: str | None = None

    @classmethod
    def parse(cls, text: str) -> Split:
        match = _SPLIT.fullmatch(text.strip())
        if match is None or not text.strip():
            raise SourceError(f"{text!r} is not understood; write train, train[:1000] or train[10%:20%]", about="split")
        return cls(match[1], match[2], match[3])

    def __str__(self) -> str:
        part = "" if self.first is self.last is None else f"[{self.first or ''}:{self.last or ''}]"
        return f"{self.name or ''}{part}"

    def rows(self, count: int) -> range:
        """Which of `count` rows; none if the end is before the beginning."""
        begin, end = _place(self.first, count, 0), _place(self.last, count, count)
        return range(begin, max(begin, end))


def _place(text: str | None, count: int, default: int) -> int:
    if text is None:
        return default
    place = round(count * int(text[:-1]) / 100) if text.endswith("%") else int(text)
    return min(place, count)


def read_rows(
    source: str | Path,
    *,
    split: str | None = None,
    name: str | None = None,
    only: str | None = None,
    endings: Sequence[str] = FILES,
) -> Any:
    """The rows of a source: dictionaries in a list or in a `datasets.Dataset`.

    `split` is a name, a part in brackets, or both; `name` is a configuration of a data set on the hub. A file is one
    set of rows: any split name stands for it, or if `only` is given, that name alone. A local file or folder is never
    looked up on the hub. Without the package `datasets`, only files can be read.
    """
    path = Path(source).expanduser()
    part = Split(None) if split is None else Split.parse(split)
    if part.name is None:
        part = replace(part, name=only)
    if path.is_file():
        rows = _rows_of(read_file(path, endings), part, only=only, where=str(source))
    elif path.is_dir():
        rows = _folder(path, part, only=only, endings=endings)
    elif path.suffix in FILES or str(source).startswith((".", "/", "~")):
        raise SourceError(f"there is no file or folder {source}{near_names(path)}", about="name")
    else:
        rows = _from_hub(str(source), name, part)
    if len(rows) == 0:
        raise SourceError(f"{source} has no examples" + (f" in split {split!r}" if split is not None else ""))
    return rows


def _folder(path: Path, part: Split, *, only: str | None, endings: Sequence[str]) -> Any:
    datasets = _datasets(f"the folder {path}")
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path} is no folder that Dataset.save_to_disk wrote ({first_line(error)}); "
            f"name a file ({', '.join(endings)}) or such a folder"
        ) from None
    if not isinstance(loaded, datasets.DatasetDict):
        return _rows_of(loaded, part, only=only, where=str(path))
    return _of_splits(loaded, part, str(path))


def _from_hub(source: str, name: str | None, part: Split) -> Any:
    datasets = _datasets(f"data set {source!r}, which is no file or folder here,")
    # a named split is resolved by the hub; otherwise it depends on which splits there are
    split = None if part.name is None else str(part)
    try:
        loaded = datasets.load_dataset(source, name, split=split)
    except Exception as error:  # noqa: BLE001  (the hub, the network and the format each raise their own)
        raise SourceError(
            f"data set {source!r}: there is no such file or folder here, and {hub_reason(error)}"
        ) from None
    return loaded if split is not None else _of_splits(loaded, part, source)


def _of_splits(loaded: Any, part: Split, where: str) -> Any:
    name = part.name or next((usual for usual in USUAL if usual in loaded), None)
    if name not in loaded:
        asked = f"no split {name!r}" if name is not None else f"none of the splits {', '.join(USUAL)}: name one"
        raise SourceError(f"{where} has {asked}; it has {', '.join(loaded)}", about="split")
    return _rows_of(loaded[name], part, only=None, where=where)


def _rows_of(rows: Any, part: Split, *, only: str | None, where: str) -> Any:
    if only is not None and part.name not in (None, only):
        raise SourceError(f"{where} is one set of rows, called {only!r}, not {part.name!r}", about="split")
    chosen = part.rows(len(rows))
    if len(chosen) == len(rows):
        return rows
    return rows[chosen.start : chosen.stop] if isinstance(rows, list) else rows.select(chosen)


def _datasets(what: str) -> Any:
    if importlib.util.find_spec("datasets") is None:
        raise SourceError(f"{what} needs the package datasets, which is not installed: pip install 'learnscope[hf]'")
    import datasets  # type: ignore[import-untyped]

    return datasets
