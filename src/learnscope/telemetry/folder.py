"""The folder that telemetry writes: a run folder with `telemetry.jsonl` in it, never shared by two writers."""

from __future__ import annotations

import json
from pathlib import Path

from learnscope.store.backend import FolderBackend, RunError
from learnscope.store.files import numbered
from learnscope.store.lines import LineFile
from learnscope.store.locks import Busy

LINES = "telemetry.jsonl"
CHECKPOINT = "last_checkpoint.pt"
_SIGNS = ("run.json", "records.jsonl", "records.parquet")
"""Files of a folder that holds records, or is about to."""


def claim(wanted: Path) -> tuple[FolderBackend, LineFile]:
    """A folder that holds no records yet, locked: the one asked for, or else `<name>-2`, `<name>-3`, …"""
    for path in numbered(wanted):
        if _is_used(path):
            continue
        try:
            lines = LineFile(path / LINES)
        except Busy:
            continue
        if not _is_used(path):  # another process may have come and gone since the look above
            break
        lines.close()
    _remove_leftovers(path)
    return FolderBackend(path), lines


def _is_used(path: Path) -> bool:
    """Whether it holds records. Telemetry that saw no batch leaves an empty file of lines, which does not count."""
    lines = path / LINES
    return any((path / sign).exists() for sign in _SIGNS) or (lines.exists() and lines.stat().st_size > 0)


def continues(path: Path) -> bool:
    """Whether a folder has telemetry to go on with; refuses one whose files are another program's, or another run's."""
    if (path / "run.json").exists():
        source = FolderBackend.existing(path).manifest().get("source")
        if source != "telemetry":
            raise RunError(
                f"{path} is a run of {source}, not telemetry, and cannot be continued as such: give telemetry an "
                "output_dir of its own"
            )
        return True
    if _is_used(path):
        raise RunError(
            f"{path / LINES} is not of a run that can be continued, as there is no run.json beside it: move it away, "
            "or give another output_dir"
        )
    return False


def take_up(path: Path) -> tuple[FolderBackend, LineFile]:
    """A folder whose telemetry is continued."""
    backend = FolderBackend.existing(path)
    try:
        lines = LineFile(path / LINES)
    except Busy as error:
        raise RunError(f"{path} is being written by another process; let it end, or give this one its own.") from error
    _remove_leftovers(path)
    return backend, lines


def _remove_leftovers(path: Path) -> None:
    """Remove half-written checkpoints of a process that was killed; the folder is locked, so nobody writes them."""
    for leftover in path.glob(f".{CHECKPOINT}.*.tmp"):
        leftover.unlink(missing_ok=True)


def last_step(backend: FolderBackend) -> int:
    """The last step of a folder's telemetry: that of its last whole line, or at which an attempt was closed."""
    step = 0
    with (backend.path / LINES).open("rb") as file:
        for line in file:
            try:
                body = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            if isinstance(body, dict) and "global_step" in body:
                step = int(body["global_step"])
    closed = (backend.manifest().get("attempts") or [{}])[-1].get("last_step")
    return max(step, int(closed or 0))
