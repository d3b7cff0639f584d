"""How the notable examples of a run look, as its file `shown.json`. Read without torch, and never trusted."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learnscope.characters import visible
from learnscope.ledger.looks import CHARACTERS, Look, remark
from learnscope.ledger.thumbnails import EDGE
from learnscope.store.backend import Backend, FolderBackend, MemoryBackend
from learnscope.store.files import write_json

NAME = "shown.json"
VERSION = 1
LARGEST = 4_000_000
"""Bytes above which the file is not ours: 75 examples take less than one million."""


def put_shown(backend: Backend, looks: Mapping[int, Look]) -> None:
    """Keep how examples look, in place of what was kept before."""
    body = {"version": VERSION, "shown": [_entry(id, look) for id, look in looks.items()]}
    if isinstance(backend, MemoryBackend):
        backend.shown = body
    elif backend.may_write():
        write_json(backend.path / NAME, body)


def shown_of(backend: Backend) -> tuple[dict[int, Look], list[str]]:
    """How the examples of a run look, by id, and what is wrong with the file; none of a run that keeps none."""
    if isinstance(backend, MemoryBackend):
        return looks_in(backend.shown or {"version": VERSION, "shown": []})
    path = backend.path / NAME if isinstance(backend, FolderBackend) else None
    if path is None or not path.exists():
        return {}, []
    try:
        return looks_in(_body(path))
    except (ValueError, RecursionError, OSError) as error:
        return {}, [remark(f"{NAME} cannot be read, so examples have no pictures or texts ({error})")]


def looks_in(body: Any) -> tuple[dict[int, Look], list[str]]:
    """The sound entries of what the file holds, and a sentence about the others."""
    if not isinstance(body, dict) or not isinstance(body.get("shown"), list):
        return {}, [f"{NAME} is damaged: examples have no pictures or texts"]
    if not isinstance(body.get("version"), int) or body["version"] > VERSION:
        return {}, [f"{NAME} was written by a later learnscope, and is left out"]
    looks: dict[int, Look] = {}
    damaged = 0
    for entry in body["shown"]:
        try:
            id = _id(entry["id"])
            looks[id] = _look(entry)
        except (KeyError, TypeError, ValueError):
            damaged += 1
    said = f"{damaged} of {len(body['shown'])} examples in {NAME} are damaged and were left out"
    return looks, [said] if damaged else []


def _body(path: Path) -> Any:
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    return json.loads(path.read_text(encoding="utf-8"))


def _entry(id: int, look: Look) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": id}
    if look.text is not None:
        entry["text"] = look.text
    elif look.image is not None:
        entry["size"] = list(look.image.shape[:2])
        entry["pixels"] = base64.b64encode(look.image.tobytes()).decode()
    else:
        entry["reason"] = look.reason
    return entry | ({"note": look.note} if look.note else {})


def _look(entry: dict[str, Any]) -> Look:
    note = remark(_string(entry.get("note", "")))
    if "text" in entry:
        return Look(text=visible(_string(entry["text"]))[:CHARACTERS], note=note)
    if "pixels" not in entry:
        return Look(reason=remark(_string(entry["reason"])), note=note)
    height, width = entry["size"]
    if not all(type(edge) is int and 1 <= edge <= EDGE for edge in (height, width)):
        raise ValueError(f"an image of {height} × {width}")
    try:
        pixels = np.frombuffer(base64.b64decode(_string(entry["pixels"]), validate=True), np.uint8)
    except binascii.Error as error:
        raise ValueError("no base64") from error
    return Look(image=pixels.reshape(height, width, 3), note=note)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is needed")
    return value


def _id(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("an id is a whole number")
    return value
