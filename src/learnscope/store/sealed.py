"""Run files as a database may see them: under numbers instead of paths, and only to be read.

A database that is given a path may also write there; SQL has more ways to do so than can be listed. Behind this file
system there is nothing that opens a file for writing, and no path that would have to be quoted.
"""

from __future__ import annotations

import io
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

PROTOCOL = "learnscope"


@dataclass(frozen=True)
class _Piece:
    path: Path
    start: int
    size: int


class RunFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Pieces of files, each as long as it was when it was added: lines written since are not seen."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._pieces: dict[str, _Piece] = {}

    @property
    def names(self) -> list[str]:
        return list(self._pieces)

    def add(self, path: Path, start: int = 0) -> str:
        """The name under which `path` can be read from byte `start` on."""
        name = f"{PROTOCOL}://{len(self._pieces)}{path.suffix}"
        self._pieces[name] = _Piece(path, start, path.stat().st_size - start)
        return name

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._pieces[path].size, "type": "file"}

    def exists(self, path: str, **_: Any) -> bool:
        return path in self._pieces

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path] if path in self._pieces else []

    def modified(self, path: str) -> datetime:  # noqa: ARG002  (a piece never changes)
        return datetime.fromtimestamp(0, UTC)

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.RawIOBase:
        if mode != "rb" or path not in self._pieces:
            raise PermissionError("SQL may read the records of the runs and nothing else")
        piece = self._pieces[path]
        return _Reader(os.open(piece.path, os.O_RDONLY), piece)


class _Reader(io.RawIOBase):
    """A piece of a file. Every thread has a place of its own: a database seeks and reads from several at once."""

    def __init__(self, file: int, piece: _Piece) -> None:
        self._file = file
        self._piece = piece
        self._places: dict[int, int] = {}  # by number: the database's threads keep nothing else between two calls

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._piece.size}[whence]
        self._places[threading.get_ident()] = base + place
        return base + place

    def tell(self) -> int:
        return self._places.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        place = self.tell()
        left = max(self._piece.size - place, 0)
        data = os.pread(self._file, left if size < 0 else min(size, left), self._piece.start + place)
        self._places[threading.get_ident()] = place + len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()
