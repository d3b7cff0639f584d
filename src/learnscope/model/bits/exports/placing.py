"""Files and folders that are written whole or not at all, and never over what somebody else wrote."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learnscope.model.bits.torchao_export import ExportError

MARK = "learnscope.json"
"""In a folder that was exported: its format, bits and scheme."""


def is_ours(path: Path, is_our_file: Callable[[Path], bool]) -> bool:
    if not path.is_dir():
        return is_our_file(path)
    try:
        return bool(json.loads((path / MARK).read_text(encoding="utf-8"))["kind"] == "export")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_target(path: Path, *, folder: bool, overwrite: bool, is_our_file: Callable[[Path], bool]) -> None:
    """Refuse a path that cannot be written to, or that has something which we did not write."""
    for above in path.absolute().parents:
        if above.exists() and not above.is_dir():
            raise ExportError(f"{above} is a file, so nothing can be written below it: name another path")
    if not path.exists():
        return
    if path.is_dir() != folder:
        raise ExportError(
            f"{path} is a {'folder' if path.is_dir() else 'file'}: name a {'folder' if folder else 'file'}"
        )
    empty = folder and not any(path.iterdir())
    if not (empty or overwrite or is_ours(path, is_our_file)):
        raise ExportError(
            f"{path} exists and is no earlier export: name another path, or move it away; in Python, overwrite=True "
            "replaces it"
        )


def place(path: Path, write: Callable[[Path], Any], *, folder: bool) -> Any:
    """Call `write` on a new path beside `path`, and rename it to `path` when it has returned; what it returns.

    After an error nothing is left of it, and what was at `path` is as it was.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        new = work / path.name
        if folder:
            new.mkdir()
        result = write(new)
        for file in new.rglob("*") if folder else (new,):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        if folder and path.is_dir():
            _exchange(path, new, work / "earlier")
        else:
            new.replace(path)
        return result
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _exchange(path: Path, new: Path, earlier: Path) -> None:
    """A folder cannot be replaced by renaming: the earlier one is moved aside, and back if that fails."""
    path.rename(earlier)
    try:
        new.rename(path)
    except BaseException:
        earlier.rename(path)
        raise
