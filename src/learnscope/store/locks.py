"""One writer for a file: a lock of the operating system, or a file beside it where there is none."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]

STALE_SECONDS = 24 * 3600
"""After this time without a write, the lock file of another host is taken for one that was left behind."""


class Busy(Exception):
    """Another process is writing this file."""


class Lock:
    """Held from when it is made until `release`. The operating system's ends with the process, also if it is killed."""

    def __init__(self, file: int, path: Path) -> None:
        self._file: int | None = None
        self._beside: Path | None = None
        try:
            if fcntl is not None:
                _flock(file)
                self._file = file
                return
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Busy from error
            # some network file systems have no flock: ENOTSUP, ENOLCK, EINVAL, ENOSYS
        self._beside = _lock_file(path)

    def release(self) -> None:
        if self._file is not None and fcntl is not None:
            # explicitly: a child forked meanwhile, such as a loader's worker, would still hold the lock
            fcntl.flock(self._file, fcntl.LOCK_UN)
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)


def _flock(file: int) -> None:
    """Tried again for a moment: `is_locked` of a reader holds the lock for an instant."""
    for pause in (0.01, 0.05):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(pause)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool | None:
    """Whether a process is writing the file; None where that cannot be told."""
    beside = _beside(path)
    if beside.exists():
        return not _is_left_behind(beside)
    if fcntl is None:
        return None
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    finally:
        os.close(file)
    return False


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _lock_file(path: Path) -> Path:
    """Made by exactly one process, with its number and host in it."""
    beside = _beside(path)
    for _ in range(2):
        try:
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            if not _is_left_behind(beside):
                raise Busy from None
            beside.unlink(missing_ok=True)
            continue
        os.write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        os.close(file)
        return beside
    raise Busy


def _is_left_behind(beside: Path) -> bool:
    """Whether the process that made the lock file is gone; of another host's, after a day without a sign of it."""
    try:
        owner = json.loads(beside.read_text())
        if owner["host"] == socket.gethostname():
            os.kill(int(owner["pid"]), 0)
            return False
    except ProcessLookupError:
        return True
    except PermissionError:  # alive, and of another user
        return False
    except (OSError, ValueError, TypeError, KeyError):
        pass
    try:
        return time.time() - beside.stat().st_mtime > STALE_SECONDS
    except FileNotFoundError:
        return True
