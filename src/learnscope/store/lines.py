"""Lines of JSON: one process appends to a file; a line that a kill or a full disk tore does not affect the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn, SupportsIndex

from learnscope.record import Record

try:
    import fcntl
except ImportError:  # Windows has no flock: files are not locked there
    fcntl = None  # type: ignore[assignment]


class Busy(Exception):
    """Another process is writing this file."""


class LineFile:
    """Opened for appending and locked. One write per line, so that a killed process leaves at most one torn line."""

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
            # on a full disk part of the line may be written: cut it off, so that the next line starts clean
            os.ftruncate(self._file, self._good_size)
            raise
        self._good_size += len(data)

    def close(self) -> None:
        """Release the lock. A forked child that inherited the file closes only its own handle."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            if os.getpid() == self._owner:
                os.fsync(file)
                # explicitly: a child forked meanwhile, such as a loader's worker, would still hold the lock
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused: a copy would close, or write to, whatever file has this file number by then."""
        raise TypeError(f"the open file {self.path} cannot be copied or pickled: leave out what holds it")


def _open_locked(path: Path) -> int:
    """The file of this name, locked. If it was removed between opening and locking, it is opened again."""
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
    """One writer per file. The lock ends with the process, also if it is killed."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Busy from error


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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"line {number} of records.jsonl is torn or damaged and was skipped ({error})"


def records_in(lines: Iterable[bytes], problems: list[str]) -> Iterator[Record]:
    """The records; what is wrong with the other lines is added to `problems`."""
    for _, record in parse_lines(lines):
        if isinstance(record, str):
            problems.append(record)
        else:
            yield record
