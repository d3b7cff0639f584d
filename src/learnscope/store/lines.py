"""A file of lines that one process appends to: each line whole, whatever happens to the process or the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn, SupportsIndex


class Busy(Exception):
    """Another process writes this file."""


class LineFile:
    """Opened for appending and locked. One write a line, so that a killed process leaves at most one torn line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _open_locked(path)
        try:
            _end_torn_line(file)
        except BaseException:
            os.close(file)
            raise
        self._file: int | None = file
        self._owner = os.getpid()
        self._good_size = os.fstat(file).st_size

    def append(self, line: str) -> None:
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        data = line.encode() + b"\n"
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes fitted")
        except OSError:
            # a full disk may have taken a part: cut it off, so that the next line starts clean
            os.ftruncate(self._file, self._good_size)
            raise
        self._good_size += len(data)

    def close(self) -> None:
        """Give up the lock. In a forked child that inherited the file, only the child's own handle goes."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if os.getpid() == self._owner:
                os.fsync(file)
                # a child that was forked meanwhile, as a loader's worker is, would go on holding it
                _unlock(file)
        finally:
            os.close(file)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """A copy would close, or write to, whatever file has this one's number by then."""
        raise TypeError(f"the open file {self.path} cannot be copied or pickled: leave out what holds it")


def _open_locked(path: Path) -> int:
    """The file of this name, locked. One that was removed between opening and locking is opened again."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _lock(file)
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int) -> None:
    """One writer a file: the lock goes with the process, so a killed one leaves none behind."""
    try:
        import fcntl
    except ImportError:  # Windows has no flock; the file is then simply not locked
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Busy from error


def _unlock(file: int) -> None:
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_UN)


def _end_torn_line(file: int) -> None:
    """After a kill in mid-write the last line has no end: give it one, so that what follows is readable."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")
