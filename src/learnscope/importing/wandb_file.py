"""The records of a `run-*.wandb` file, read without the service.

The file is a log as LevelDB writes it, with a head of its own: blocks of 32 KiB that hold pieces of records, each with
a check sum (of zlib, not Castagnoli's), its length, and whether it is all, the first, a middle or the last piece.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from learnscope.importing.foreign import Progress
from learnscope.importing.packages import needed
from learnscope.store.errors import RunError

EXTRA = "wandb"
WHAT = "a file of wandb"
_IDENTITY = b":W&B"
_MAGIC = 0xBEE1
_HEAD = struct.Struct("<4sHB")
_PIECE = struct.Struct("<IHB")
_BLOCK = 32768
_ALL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_EVERY = 500
"""Records between two looks at the progress."""


def wandb_records(path: Path, problems: list[str], progress: Progress, before: int, total: int) -> Iterator[Any]:
    """The records in the order of writing; what is wrong with the rest of the file is added to `problems`."""
    proto = needed("wandb.proto.wandb_internal_pb2", WHAT, EXTRA)
    message = needed("google.protobuf.message", WHAT, EXTRA)
    for number, (place, body) in enumerate(_bodies(path, problems), 1):
        try:
            record = proto.Record.FromString(body)
        except message.DecodeError as error:
            problems.append(f"{path.name}: the record at byte {place:,} cannot be read ({error})")
            return
        if number % _EVERY == 0:
            progress(before + place, total)
        yield record


def _bodies(path: Path, problems: list[str]) -> Iterator[tuple[int, bytes]]:
    """Each record's place and bytes, put together from its pieces."""
    size = path.stat().st_size
    with path.open("rb") as file:
        _check_head(path, file.read(_HEAD.size))
        place, parts, begun = _HEAD.size, list[bytes](), 0
        while place < size:
            left = _BLOCK - place % _BLOCK
            if left < _PIECE.size:  # the end of a block that is too short for a piece
                place += left
                file.seek(place)
                continue
            head = file.read(_PIECE.size)
            if head == bytes(len(head)) and not any(file.read()):  # space that was reserved and never written
                return
            length = _PIECE.unpack(head)[1] if len(head) == _PIECE.size else None
            body = b"" if length is None else file.read(length)
            if length is None or len(body) < length:
                problems.append(_wrong(path, place, size, "is cut off"))
                return
            check, _, kind = _PIECE.unpack(head)
            if zlib.crc32(body, zlib.crc32(bytes([kind]))) != check or (kind in (_MIDDLE, _LAST)) != bool(parts):
                problems.append(_wrong(path, place, size, "is damaged"))
                return
            begun = begun if parts else place
            parts.append(body)
            place += _PIECE.size + length
            if kind in (_ALL, _LAST):
                yield begun, b"".join(parts)
                parts = []
        if parts:
            problems.append(_wrong(path, begun, size, "is cut off"))


def _check_head(path: Path, head: bytes) -> None:
    if len(head) < _HEAD.size:
        raise RunError(f"{path} is no file of wandb: it has {len(head)} bytes")
    identity, magic, version = _HEAD.unpack(head)
    if identity != _IDENTITY or magic != _MAGIC:
        raise RunError(f"{path} is no file of wandb: it begins with {head!r}")
    if version != 0:
        raise RunError(f"{path} is of version {version} of wandb's format, and only version 0 is known here")


def _wrong(path: Path, place: int, size: int, what: str) -> str:
    return f"{path.name}: the record at byte {place:,} of {size:,} {what}; what came before it was read"
