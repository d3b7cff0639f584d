"""shown.json: what was written comes back, and whatever else stands in it is left out and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostile.corrupted import STRANGE, places, put
from learnscope.ledger.looks import Look
from learnscope.ledger.shown import LARGEST, NAME, looks_in, put_shown, shown_of
from learnscope.ledger.thumbnails import EDGE
from learnscope.store.backend import FolderBackend, MemoryBackend

IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
LOOKS = {
    3: Look(image=IMAGE, note="a note"),
    -(2**63): Look(text="<b>\n\u202e"),
    5: Look(reason="why not"),
    6: Look(text=""),
}


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_looks_come_back(kind: str, tmp_path: Path) -> None:
    backend = MemoryBackend() if kind == "memory" else FolderBackend(tmp_path)
    assert shown_of(backend) == ({}, [])
    put_shown(backend, LOOKS)
    looks, problems = shown_of(backend)
    assert problems == []
    assert list(looks) == list(LOOKS)
    image = looks[3].image
    assert image is not None
    np.testing.assert_array_equal(image, IMAGE)
    assert (looks[3].note, looks[5].reason, looks[6].text) == ("a note", "why not", "")
    assert looks[-(2**63)].text == "<b>\n\\u202e"
    if kind == "folder":
        assert sorted(path.name for path in tmp_path.iterdir()) == [NAME]


def test_the_largest_file_is_below_the_limit(tmp_path: Path) -> None:
    largest = Look(image=np.full((EDGE, EDGE, 3), 255, np.uint8), note="n" * 200)
    put_shown(FolderBackend(tmp_path), dict.fromkeys(range(75), largest))
    assert (tmp_path / NAME).stat().st_size < 1_000_000 < LARGEST


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"{}", b'{"version": 1}', b'{"version": 2, "shown": []}', b"\xff\xfe", b"[" * 100_000,
     b'{"version": 1, "shown": {}}', b'{"version": "1", "shown": []}', b" " * (LARGEST + 1), b"1" * 5000],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_a_file_that_is_none_of_ours_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(content)
    looks, problems = shown_of(FolderBackend(tmp_path))
    assert looks == {}
    assert len(problems) == 1
    assert NAME in problems[0]


def test_a_folder_in_its_place_is_said(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert NAME in shown_of(FolderBackend(tmp_path))[1][0]


def test_any_value_anywhere_is_left_out_or_read(tmp_path: Path) -> None:
    put_shown(FolderBackend(tmp_path), LOOKS)
    text = (tmp_path / NAME).read_text()
    for path in places(json.loads(text)):
        for value in [*STRANGE, float("nan"), "\u202e\x1b", "A" * 100_000, [48, 49], [10**9, 10**9]]:
            looks, problems = looks_in(put(json.loads(text), path, value))
            assert all(isinstance(id, int) for id in looks)
            for look in looks.values():
                check(look)
            assert all(NAME in each for each in problems)


def check(look: Look) -> None:
    for part, most in ((look.text or "", 500), (look.note, 200), (look.reason, 200)):
        assert len(part) <= most
        assert "\x1b" not in part
        assert "\u202e" not in part
    shape: Any = (1, 1, 3) if look.image is None else look.image.shape
    assert shape[2] == 3
    assert max(shape[:2]) <= EDGE
