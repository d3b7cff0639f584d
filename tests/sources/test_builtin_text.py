"""The built-in text: the same every time, in two splits that share nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from learnscope.sources import SourceError, builtin_rows
from learnscope.sources.builtin_text import SHARED, text_hash
from learnscope.sources.files import paragraphs


def test_splits_share_neither_topics_nor_paragraphs() -> None:
    train, validation = builtin_rows("train"), builtin_rows("validation")
    assert not {row["topic"] for row in train} & {row["topic"] for row in validation}
    seen = [
        {" ".join(part.split()) for row in rows for part in paragraphs(row["text"])} for rows in (train, validation)
    ]
    assert {text for text in seen[0] & seen[1] if len(text) > SHARED} == set()
    assert len(validation) > 100, "validation[:100] is what it says"
    sizes = [sum(len(row["text"]) for row in rows) for rows in (train, validation)]
    assert 0.1 < sizes[1] / sum(sizes) < 0.4
    assert sum(sizes) > 250_000


def test_it_is_whole_english_without_rules_under_headings() -> None:
    from pydoc_data.topics import topics

    rows = builtin_rows("train") + builtin_rows("validation")
    originals = {topic: " ".join(text.split()) for topic, text in topics.items()}
    for row in rows:
        assert row["text"] == row["text"].rstrip()
        assert row["text"].strip()
        assert not any(line and set(line) <= set("*=-~^") and len(line) > 2 for line in row["text"].split("\n")), row
    # nothing else is changed
    inside = [
        " ".join(part.split()) in originals[row["topic"]] for row in rows for part in paragraphs(row["text"])
    ]  # fmt: skip
    assert sum(inside) == len(inside)


def test_parts() -> None:
    rows = builtin_rows("validation")
    assert builtin_rows("validation[:100]") == rows[:100]
    assert builtin_rows("[2:4]") == rows[2:4]
    assert builtin_rows("train[50%:]") == builtin_rows("train")[round(len(builtin_rows("train")) / 2) :]
    with pytest.raises(SourceError, match="has the splits train and validation, not 'test'"):
        builtin_rows("test[:3]")
    with pytest.raises(SourceError, match="none of them in 'validation\\[7:3\\]'"):
        builtin_rows("validation[7:3]")


def test_another_process_has_the_same_without_torch() -> None:
    program = (
        "import sys\nfrom learnscope.sources.builtin_text import text_hash\n"
        "print(text_hash(), 'torch' in sys.modules, 'datasets' in sys.modules)"
    )
    seeded = {**os.environ, "PYTHONHASHSEED": "123"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=seeded)
    assert said.stdout.split() == [text_hash(), "False", "False"]
