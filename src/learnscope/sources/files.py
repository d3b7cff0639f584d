"""Files of examples as a list of dictionaries; needs no package but pandas, and pyarrow for Parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learnscope.options import nearest
from learnscope.sources.errors import SourceError, first_line

FILES = (".jsonl", ".json", ".csv", ".parquet", ".txt")


def read_file(path: Path, endings: Sequence[str] = FILES) -> list[dict[str, Any]]:
    """All rows; those of a `.txt` file are its paragraphs, in `text`."""
    if path.suffix not in endings:
        raise SourceError(f"{path}: files end with {', '.join(endings)}")
    try:
        if path.suffix == ".txt":
            return [{"text": text} for text in paragraphs(path.read_text(encoding="utf-8-sig"))]
        if path.suffix in (".jsonl", ".json"):
            return _json_rows(path)
        if path.suffix == ".parquet":
            return _parquet_rows(path)
        import pandas as pd

        # as text: the caller decides what a column means, and "NA" may be a word
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
    except SourceError:
        raise
    except (ValueError, OSError, TypeError) as error:  # pyarrow's and pandas' errors are ValueErrors
        raise SourceError(f"{path} cannot be read as {path.suffix[1:]}: {first_line(error)}") from None


def paragraphs(text: str) -> list[str]:
    """The parts of a text between blank lines, unchanged.

    >>> paragraphs("one\\nmore\\n\\n \\n  two\\n")
    ['one\\nmore', '  two']
    """
    parts = re.split(r"\n\s*\n", text)
    return [part.strip("\n").rstrip() for part in parts if part.strip()]


def near_names(path: Path) -> str:
    """A suggestion of a file with a similar name in the same folder; empty if there is none."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f" (there is no folder {path.parent} either)"
    near = nearest(path.name, names)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _json_rows(path: Path) -> list[dict[str, Any]]:
    """A list of objects, or one object per line."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".json":
        body = json.loads(text)
        if not isinstance(body, list):
            raise SourceError(f"{path}: a list of objects is needed, one for each example")
        numbered = list(enumerate(body, 1))
    else:
        numbered = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    numbered.append((number, json.loads(line)))
                except json.JSONDecodeError as error:
                    raise SourceError(f"{path}, line {number} is not JSON ({error.msg}): fix or remove it") from None
    for number, row in numbered:
        if not isinstance(row, dict):
            raise SourceError(f"{path}, {'line' if path.suffix == '.jsonl' else 'entry'} {number}: not an object")
    return [row for _, row in numbered]


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
    except ImportError:
        raise SourceError(
            f"{path}: Parquet files need pyarrow, which is not installed: pip install 'learnscope[hf]'"
        ) from None
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows
