"""Run files as a database may see them: under numbers instead of paths, and read-only.

A database that is given a path may also write there; SQL has too many ways to do so to block them one by one. This file
system cannot open a file for writing, and its names need no quoting.
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
    """Pieces of files, each as long as it was when added: lines written later are not seen."""

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
    """A piece of a file. Every thread has its own position: a database seeks and reads from several at once."""

    def __init__(self, file: int, piece: _Piece) -> None:
        self._file = file
        self._piece = piece
        self._positions: dict[int, int] = {}  # by thread id, the only thing that lasts between the threads' calls

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._piece.size}[whence]
        self._positions[threading.get_ident()] = base + offset
        return base + offset

    def tell(self) -> int:
        return self._positions.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        position = self.tell()
        left = max(self._piece.size - position, 0)
        data = os.pread(self._file, left if size < 0 else min(size, left), self._piece.start + position)
        self._positions[threading.get_ident()] = position + len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            os.close(self._file)
        super().close()
