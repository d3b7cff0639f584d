"""The catalog of an index: taken as it is written, or not at all, as everything in it can be read from the lines."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learnscope.store.columnar.forms import Form, checked_form
from learnscope.store.files import write_atomically

CATALOG = "catalog.json"
SCHEMA = 1
_NUMBERS, _LISTS = ("start", "end", "first", "lines", "words"), ("blocks", "loose", "problems", "damaged")
_ENTRY = {"file", "hash", *_NUMBERS, *_LISTS}
_FILE = re.compile(r"\d+-\d+-[0-9a-f]{12}\.words")


def read_catalog(path: Path) -> tuple[dict[str, Any], list[Form]]:
    """What a catalog holds, and its forms; nothing if there is none, or if it is damaged or of another version."""
    try:
        check, _, text = path.read_text(encoding="utf-8").partition("\n")
        body: dict[str, Any] = json.loads(text) if int(check) == zlib.crc32(text.encode()) else {}
        if body.get("schema") != SCHEMA:
            return {}, []
        forms = [checked_form(form["text"].encode(), form["labels"]) for form in body["forms"]]
        return (body, forms) if _are_sound(body["segments"], forms) else ({}, [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, []


def write_catalog(path: Path, body: dict[str, Any]) -> None:
    text = json.dumps({"schema": SCHEMA, **body})
    whole = f"{zlib.crc32(text.encode())}\n{text}"
    write_atomically(path, lambda temporary: temporary.write_text(whole), durable=False)


def _are_sound(segments: Sequence[dict[str, Any]], forms: Sequence[Form]) -> bool:
    """Whether the entries are as an index writes them: of lines that follow one another, from the first on."""
    end = first = 0
    for entry in segments:
        if not _is_sound(entry, forms) or (entry["start"], entry["first"]) != (end, first):
            return False
        end, first = entry["end"], first + entry["lines"]
    return True


def _is_sound(entry: dict[str, Any], forms: Sequence[Form]) -> bool:
    """The file of an entry is removed one day, so it must lie in the index."""
    typed = all(_is_number(entry[name]) for name in _NUMBERS) and all(type(entry[name]) is list for name in _LISTS)
    if not typed or entry.keys() != _ENTRY or _FILE.fullmatch(entry["file"]) is None or entry["start"] > entry["end"]:
        return False
    words = 0
    for form, records, checks in entry["blocks"]:
        fits = _is_number(form) and form < len(forms) and _is_number(records) and records > 0
        if not fits or len(checks) != 1 + forms[form].width or not all(map(_is_number, checks)):
            return False
        words += records * len(checks)
    texts = [*entry["problems"], *entry["damaged"]]
    return words == entry["words"] and {str}.issuperset(map(type, texts))


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
