"""TensorBoard's event files: records with their lengths and check sums, each an event.

TensorBoard's own reader ends silently at a record that is cut off or damaged; this one says where.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from learnscope.importing.foreign import Progress
from learnscope.importing.packages import needed

EXTRA = "tensorboard"
WHAT = "TensorBoard's event files"
_HEAD = struct.Struct("<QI")
_CHECK = struct.Struct("<I")
_EVERY = 1000
"""Events between two looks at the progress."""


def events_of(path: Path, problems: list[str], progress: Progress, before: int, total: int) -> Iterator[Any]:
    """The events of a file in the order of writing.

    What is wrong with the rest of the file, if anything, is added to `problems`. `before` and `total` are the bytes of
    all files before this one and of all together, for the progress.
    """
    proto = needed("tensorboard.compat.proto.event_pb2", WHAT, EXTRA)
    message = needed("google.protobuf.message", WHAT, EXTRA)
    for number, (place, body) in enumerate(_records(path, problems), 1):
        try:
            event = proto.Event.FromString(body)
        except message.DecodeError as error:
            problems.append(
                f"{path.name}: the record at byte {place:,} is no event ({error}); what follows is not read"
            )
            return
        if number % _EVERY == 0:
            progress(before + place, total)
        yield event


def _records(path: Path, problems: list[str]) -> Iterator[tuple[int, bytes]]:
    """Each record's place and bytes."""
    check = needed("tensorboard.compat.tensorflow_stub.pywrap_tensorflow", WHAT, EXTRA).masked_crc32c
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            end = None
            if len(head) == _HEAD.size:
                length, of_length = _HEAD.unpack(head)
                if check(head[:8]) != of_length:
                    problems.append(_wrong(path, place, size, "has a damaged length"))
                    return
                end = place + _HEAD.size + length + _CHECK.size
            if end is None or end > size:
                problems.append(_wrong(path, place, size, "is cut off"))
                return
            body = file.read(length)
            if check(body) != _CHECK.unpack(file.read(_CHECK.size))[0]:
                problems.append(_wrong(path, place, size, "has another check sum than its contents"))
                return
            yield place, body
            place = end


def _wrong(path: Path, place: int, size: int, what: str) -> str:
    return f"{path.name}: the record at byte {place:,} of {size:,} {what}; what came before it was read"
