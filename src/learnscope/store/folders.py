"""Run folders by name: found one by one, below a folder or by a pattern; and runs that take an earlier one's place."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from learnscope.store.backend import FolderBackend, MemoryBackend, RunError
from learnscope.store.files import has_run, write_json, write_text

Runs = str | Path | Sequence[str | Path]


def find_runs(runs: Runs) -> list[Path]:
    """The run folders, each once, in the order of `runs`, and by name below a folder."""
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    folders: dict[Path, Path] = {}
    for path in paths:
        for root in _roots(Path(path)):
            below = list(_below(root))
            if not below:
                raise RunError(f"there is no run in {root}: no folder there holds a run.json. {CURE}")
            for folder in below:
                folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise RunError(f"no runs were named. {CURE}")
    return list(folders.values())


CURE = "Name run folders, a folder that contains some, or a pattern such as 'runs/*'."


def _roots(path: Path) -> list[Path]:
    """The path itself if it exists (a folder's name may look like a pattern), or what it matches."""
    if path.exists():
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    folders = [match for match in matches if match.is_dir() and any(_below(match))]
    if not folders:
        raise RunError(f"there is no run at {path}. {CURE}")
    return folders


def _below(root: Path) -> Iterator[Path]:
    """The run folders at or below `root`; follows links, but does not look inside a run."""
    visited: set[str] = set()
    for current, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(current)
        if "run.json" in files:
            yield Path(current)
        if "run.json" in files or real in visited:
            folders.clear()
        visited.add(real)
        folders.sort()


def check_replaceable(folder: Path, key: str) -> None:
    """Refuse a folder with a run whose manifest lacks the key: what others recorded is never overwritten."""
    marked = (folder / "run.json").is_file() and key in FolderBackend(folder).manifest()
    if has_run(folder) and not marked:
        raise RunError(f"{folder} already holds another run, which would be overwritten: name another folder")


def replace_run(run: MemoryBackend, folder: Path) -> None:
    """Write a run in memory as a folder; each file is the earlier run's or the new one, never a part."""
    records = list(run.records([]))
    lines = [record.to_json() for record in records]
    for reference in dict.fromkeys(record.arrays for record in records if record.arrays is not None):
        FolderBackend(folder).put_arrays(reference, run.arrays(reference))
    write_text(folder / "records.jsonl", "".join(f"{line}\n" for line in lines))
    (folder / "records.parquet").unlink(missing_ok=True)  # of the earlier run, if that was compacted
    write_json(folder / "run.json", run.manifest())
