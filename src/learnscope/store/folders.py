"""Finding run folders: named one by one, below a folder, or by a pattern."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from learnscope.store.backend import RunError

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
