"""Rows from files, folders and names, with and without the package `datasets`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from learnscope.sources import SourceError, Split, read_rows

ROWS = [{"text": f"ü {n}", "label": str(n % 3)} for n in range(10)]


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet", "folder", "splits"])
def test_every_form_gives_the_same_rows(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"dätä.{form}"
    if form == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    elif form == "json":
        path.write_text(json.dumps(ROWS))
    elif form == "csv":
        pd.DataFrame(ROWS).to_csv(path, index=False)
    elif form == "parquet":
        pd.DataFrame(ROWS).to_parquet(path)
    elif form == "folder":
        Dataset.from_list(ROWS).save_to_disk(path)
    else:
        sets = {"train": Dataset.from_list(ROWS[:3]), "validation": Dataset.from_list(ROWS)}
        DatasetDict(sets).save_to_disk(path)
    assert list(read_rows(path)) == ROWS, "of several splits, one that is not trained on is meant"
    assert list(read_rows(path, split="validation[20%:7]")) == ROWS[2:7]
    assert list(read_rows(path, split="[8:99]")) == ROWS[8:]


def test_paragraphs_of_a_text_are_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\nmore\r\n\r\n \t\r\n    two é\n\n\n".encode())
    assert read_rows(path) == [{"text": "one\nmore"}, {"text": "    two é"}]


@pytest.mark.parametrize(
    ("written", "count", "rows"),
    [
        ("train", 7, range(7)), ("a.b-c", 7, range(7)), ("x[:]", 7, range(7)), ("x[3:]", 7, range(3, 7)),
        ("x[ 1 : 2 ]", 7, range(1, 2)), ("x[50%:]", 7, range(4, 7)), ("x[:33%]", 10, range(3)),
        ("x[9:]", 7, range(7, 7)), ("[5:3]", 7, range(5, 5)), ("x[:200%]", 7, range(7)), ("x[:5]", 0, range(0)),
    ],
)  # fmt: skip
def test_split_syntax(written: str, count: int, rows: range) -> None:
    found = Split.parse(written)
    assert list(found.rows(count)) == list(rows)
    assert Split.parse(str(found)) == found


@pytest.mark.parametrize("written", ["", "x[1", "x[-1:]", "x[1:2:3]", "a b", "x[1]", "x+y"])
def test_splits_that_are_not_understood(written: str) -> None:
    with pytest.raises(SourceError, match="is not understood; write train") as refused:
        Split.parse(written)
    assert refused.value.about == "split"


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": \n')
    refusals: list[tuple[Any, dict[str, Any], str, str | None]] = [
        (tmp_path / "row.jsonl", {}, r"there is no file or folder .*did you mean .*rows.jsonl", "name"),
        (tmp_path / "no" / "row.jsonl", {}, r"there is no folder .*no either", "name"),
        (tmp_path / "rows.jsonl", {}, r"line 2 is not JSON .*: fix or remove it", None),
        ("./nowhere", {}, "there is no file or folder", "name"),
        (tmp_path, {}, r"no folder that Dataset\.save_to_disk wrote", None),
        ("someone/something", {}, r"no such file or folder here, and the hub is not asked", None),
    ]
    for name, text, message in [
        ("a.json", "{}", "a list of objects is needed"), ("b.json", "[1]", "entry 1: not an object"),
        ("c.csv", "", "cannot be read as csv"), ("d.parquet", "PAR1", "cannot be read as parquet"),
        ("e.jsonl", "\n", "has no examples"), ("f.md", "x", "files end with .jsonl"),
    ]:  # fmt: skip
        (tmp_path / name).write_text(text)
        refusals.append((tmp_path / name, {}, message, None))
    (tmp_path / "g.txt").write_bytes(b"\xff\xfe\x00")
    refusals.append((tmp_path / "g.txt", {}, "cannot be read as txt", None))
    (tmp_path / "one.txt").write_text("one")
    refusals.append((tmp_path / "one.txt", {"split": "test", "only": "train"}, "called 'train', not 'test'", "split"))
    refusals.append((tmp_path / "one.txt", {"split": "x[3:]"}, r"has no examples in split 'x\[3:\]'", None))
    DatasetDict({"odd": Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "d")
    refusals.append((tmp_path / "d", {}, "none of the splits validation, test, train: name one; it has odd", "split"))
    refusals.append((tmp_path / "d", {"split": "test"}, "has no split 'test'; it has odd", "split"))
    for source, options, message, about in refusals:
        with pytest.raises(SourceError, match=message) as refused:
            read_rows(source, **options)
        assert refused.value.about == about, message


def test_files_can_be_read_without_datasets_and_torch(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]))
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "folder").mkdir()
    program = f"""
import importlib.machinery, sys
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        assert name != "torch", "torch is not needed"
        return None if name.split(".")[0] == "datasets" else super().find_spec(name, path, target)
sys.meta_path = [Without if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
from learnscope.sources import SourceError, read_rows
assert len(read_rows({str(tmp_path / "a.jsonl")!r})) == 1
assert len(read_rows({str(tmp_path / "a.txt")!r})) == 2
for source in ({str(tmp_path / "folder")!r}, "someone/something"):
    try:
        read_rows(source)
    except SourceError as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.strip().split("\n")
    assert len(lines) == 2
    assert all("needs the package datasets" in line and "learnscope[hf]" in line for line in lines)
