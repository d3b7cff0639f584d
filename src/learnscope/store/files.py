"""Files written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from learnscope.characters import visible, visible_json


def write_atomically(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Call `write` on a temporary file next to `path`, then rename it into place.

    A reader sees the old file or the new one, never a part; after an error the old one is still there. Without
    `durable` there is no fsync: a power failure, not a crash, may then leave the file damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        # mkstemp gives 0600; a run folder should be readable like any other output
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
_OF_THE_WRITER = ("run.json", "records.", "examples.")
"""Files at the root of a run folder that only the process with the lock writes; so are arrays and states."""
_UNLOCKED_SECONDS = 3600


def remove_leftovers(folder: Path, *, before: float) -> list[Path]:
    """Remove what `write_atomically` of a killed process left in a run folder; returns the files.

    `before` is when the caller took the folder's lock: the temporary files of an earlier writer are older. Reports,
    findings and indexes are written without the lock, so theirs are left alone for an hour.
    """
    removed = []
    places = (".", "arrays", "state", "report", "patches", "index")
    for path in (path for place in places for path in (folder / place).glob(".*.tmp")):
        locked = path.parent.name in ("arrays", "state") or path.name[1:].startswith(_OF_THE_WRITER)
        try:
            is_ours = _LEFTOVER.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()
            if is_ours and path.stat().st_mtime <= before - (0 if locked else _UNLOCKED_SECONDS):
                path.unlink()
                removed.append(path)
        except FileNotFoundError:  # its writer has finished it
            continue
    return removed


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(visible(text), encoding="utf-8"), durable=durable)


def write_json(path: Path, body: Any) -> None:
    write_text(path, visible_json(json.dumps(body, indent=1, allow_nan=False)) + "\n")


def has_run(folder: Path) -> bool:
    """Whether a folder holds anything of a run."""
    return any((folder / name).exists() for name in ("run.json", "records.jsonl", "records.parquet"))


def numbered(path: Path) -> Iterator[Path]:
    """A path, and the same with a number behind its name, from 2 on.

    >>> [each.as_posix() for each, _ in zip(numbered(Path("runs/a")), range(3), strict=False)]
    ['runs/a', 'runs/a-2', 'runs/a-3']
    """
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))
