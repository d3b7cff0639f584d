"""Lines of JSON: one process appends to a file; a line that a kill or a full disk tore does not affect the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn, SupportsIndex

from learnscope.record import Record
from learnscope.store.locks import Lock


class CutError(OSError):
    """Another process has cut off the end of a file that is being written."""


class LineFile:
    """Opened for appending and locked. One write for lines that come together: a kill leaves at most one torn line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        file, self._lock = _open_locked(path)
        try:
            _end_torn_line(file)
        except BaseException:
            self._lock.release()
            os.close(file)
            raise
        self._file: int | None = file
        self._owner = os.getpid()
        self._good_size = os.fstat(file).st_size

    @property
    def is_ours(self) -> bool:
        """Whether this process opened the file; a child forked from it has only inherited it."""
        return os.getpid() == self._owner

    def append(self, *lines: str) -> None:
        """Write all lines or none; in a forked child, nothing: the parent goes on writing."""
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        if not self.is_ours:
            return
        self._check()
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes fitted")
        except OSError:
            # on a full disk a part may be written: cut it off, so that the next line starts clean
            os.ftruncate(self._file, self._good_size)
            raise
        self._good_size += len(data)

    def _check(self) -> None:
        """Notice what others did to the file: what is written to a removed file is lost without an error."""
        assert self._file is not None
        there = os.fstat(self._file)
        if there.st_nlink == 0:
            raise FileNotFoundError(f"{self.path} was removed while it was being written")
        if there.st_size < self._good_size:
            lost = self._good_size - there.st_size
            _end_torn_line(self._file)
            self._good_size = os.fstat(self._file).st_size
            raise CutError(f"another process cut {lost:,} bytes off the end of {self.path}")

    def check_place(self) -> None:
        """Notice that the folder was moved or removed, so that nothing is written beside another run's lines."""
        if self._file is None:
            return
        try:
            if os.path.samestat(os.fstat(self._file), self.path.stat()):
                return
        except FileNotFoundError:
            pass
        raise FileNotFoundError(f"{self.path} was moved or removed while it was being written")

    def close(self) -> None:
        """Release the lock. A forked child closes only its own handle."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if self.is_ours:
                os.fsync(file)
                self._lock.release()
        finally:
            os.close(file)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused: a copy would close, or write to, whatever file has this file number by then."""
        raise TypeError(f"the open file {self.path} cannot be copied or pickled: leave out what holds it")


def _open_locked(path: Path) -> tuple[int, Lock]:
    """The file of this name, locked. If it was removed between opening and locking, it is opened again."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            lock = Lock(file, path)
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                return file, lock
            lock.release()
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _end_torn_line(file: int) -> None:
    """After a kill during a write the last line has no end: add one, so that the lines after it can be read."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")


def parse_lines(lines: Iterable[bytes]) -> Iterator[tuple[bytes, Record | str]]:
    """Every line that is not blank, with its record or with what is wrong with it."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield line, parse_line(number, line)


def parse_line(number: int, line: bytes) -> Record | str:
    """The record of a line of records.jsonl, or a sentence about what is wrong with it."""
    try:
        return Record.from_json(line)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"line {number} of records.jsonl is torn or damaged and was skipped ({error})"


def records_in(lines: Iterable[bytes], problems: list[str]) -> Iterator[Record]:
    """The records; what is wrong with the other lines is added to `problems`."""
    for _, record in parse_lines(lines):
        if isinstance(record, str):
            problems.append(record)
        else:
            yield record
