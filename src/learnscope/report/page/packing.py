"""Numbers as a page carries them: float32 and int32 columns, compressed, behind the JSON that says what they are.

    deflate( length of the JSON | number of floats | number of integers | JSON | floats | integers )

Lengths are 32-bit, little-endian. Floats and integers are stored byte by byte: all first bytes, all second ones and so
on, since neighbouring numbers share their upper bytes, and what repeats compresses.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**31 - 1
_FLOAT32 = float(np.finfo(np.float32).max)


class Columns:
    """The columns of one page. What `add` returns goes into the JSON in the place of the numbers.

    >>> columns = Columns()
    >>> columns.floats([0.5, 1.0]), columns.floats([2.0]), columns.floats([0.5, 1.0])
    (['f', 0, 2], ['f', 2, 1], ['f', 0, 2])
    >>> columns.steps([10, 20, 30]), columns.steps([1, 2, 4])
    (['s', 10, 10, 3], ['i', 0, 3])
    """

    def __init__(self) -> None:
        self._floats: list[NDArray[np.float32]] = []
        self._integers: list[NDArray[np.int32]] = []
        self._known: dict[tuple[str, bytes], list[Any]] = {}
        self._by_place: dict[tuple[str, int, int], NDArray[Any]] = {}
        self.n_floats = self.n_integers = 0

    def floats(self, values: Any, *, rounded: bool = False) -> list[Any]:
        """NaN stands for what was not measured, infinity for what was measured and is not finite.

        Rounded values keep 15 bits of their fraction (more than four digits), which makes them smaller when compressed.
        """
        column = _float32(values)
        if rounded:
            column = _rounded(column)
        key = ("f", column.tobytes())
        if key not in self._known:
            self._known[key] = ["f", self.n_floats, len(column)]
            self._by_place["f", self.n_floats, len(column)] = column
            self._floats.append(column)
            self.n_floats += len(column)
        return self._known[key]

    def steps(self, values: Any) -> list[Any]:
        """Steps that are evenly spaced are three numbers."""
        steps = np.asarray(values, np.int64)
        if len(steps) and max(abs(int(steps.min())), abs(int(steps.max()))) > LARGEST:
            return ["n", steps.tolist()]  # beyond 32 bits: in the JSON itself
        if len(steps) > 2 and len(set(np.diff(steps).tolist())) == 1:
            return ["s", int(steps[0]), int(steps[1] - steps[0]), len(steps)]
        column = steps.astype(np.int32)
        key = ("i", column.tobytes())
        if key not in self._known:
            self._known[key] = ["i", self.n_integers, len(column)]
            self._by_place["i", self.n_integers, len(column)] = column
            self._integers.append(column)
            self.n_integers += len(column)
        return self._known[key]

    def numbers(self, reference: list[Any]) -> NDArray[Any]:
        """The numbers that a reference stands for.

        >>> columns = Columns()
        >>> columns.numbers(columns.steps([10, 20, 30])).tolist(), columns.numbers(columns.floats([0.5])).tolist()
        ([10, 20, 30], [0.5])
        """
        kind, start, *rest = reference
        if kind == "n":
            return np.asarray(start, np.int64)
        if kind == "s":
            return np.asarray(start + rest[0] * np.arange(rest[1], dtype=np.int64))
        return self._by_place[kind, start, rest[0]]

    def pack(self, body: dict[str, Any]) -> bytes:
        """The body with all columns, compressed as zlib does, which browsers call `deflate`."""
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        head = struct.pack("<III", len(text), self.n_floats, self.n_integers)
        floats = _planes(np.concatenate([np.zeros(0, np.float32), *self._floats]))
        integers = _planes(np.concatenate([np.zeros(0, np.int32), *self._integers]))
        return zlib.compress(head + text + floats + integers, 6)


def unpack(packed: bytes) -> tuple[dict[str, Any], NDArray[np.float32], NDArray[np.int32]]:
    """The inverse of `Columns.pack`: what the page does, for tests and for readers other than a browser."""
    raw = zlib.decompress(packed)
    length, floats, integers = struct.unpack_from("<III", raw)
    at = 12 + length
    body: dict[str, Any] = json.loads(raw[12:at])
    return (
        body,
        _joined(raw[at : at + 4 * floats], np.dtype("<f4")),
        _joined(raw[at + 4 * floats : at + 4 * (floats + integers)], np.dtype("<i4")),
    )


def as_text(packed: bytes) -> str:
    """Base64, which needs no escaping inside HTML."""
    return base64.b64encode(packed).decode()


def _float32(values: Any) -> NDArray[np.float32]:
    """What float32 cannot hold stays finite: a loss of 1e60 is drawn at the top, not as infinite."""
    wide = np.asarray(values, np.float64).ravel()
    finite = np.isfinite(wide)
    wide = np.where(finite, np.clip(wide, -_FLOAT32, _FLOAT32), wide)
    return wide.astype("<f4")


def _rounded(column: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = column.view(np.uint32)
    finite = np.isfinite(column) & (np.abs(column) < _FLOAT32 / 2)
    nearest = (bits + np.uint32(0x80)) & np.uint32(0xFFFFFF00)
    rounded: NDArray[np.float32] = np.where(finite, nearest, bits).astype(np.uint32).view("<f4")
    return rounded


def _planes(column: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(column.view(np.uint8).reshape(-1, 4).T).tobytes()


def _joined(planes: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(4, -1).T).view(dtype).ravel()
