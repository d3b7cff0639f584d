"""The runs that a command line names: folders, folders of folders, and what may have been meant by a wrong path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from learnscope.options import nearest
from learnscope.run import Run, open_run
from learnscope.store.backend import RunError
from learnscope.store.folders import CURE, find_runs


def named_runs(paths: Sequence[str | Path]) -> tuple[list[Run], dict[str, str]]:
    """The runs at or below these folders, and of those that could not be opened the reason.

    A folder that is named itself must be readable; a path without a run is answered with the runs that are near it.
    """
    runs: list[Run] = []
    broken: dict[str, str] = {}
    for path in map(Path, paths):
        if (path / "run.json").is_file():
            runs.append(open_run(path))
            continue
        try:
            folders = find_runs(path)
        except RunError as error:
            raise RunError(f"{path} is not a run folder: {runs_near(path)}") from error
        for folder in folders:
            try:
                runs.append(open_run(folder))
            except (RunError, OSError) as error:
                broken[str(folder)] = str(error)
    return runs, broken


def runs_near(path: Path, most: int = 8) -> str:
    """A sentence with the runs that a wrong path may have meant: those with a similar name, else those beside it."""
    above = next((folder for folder in (path, *path.parents) if folder.is_dir()), Path())
    beside = [folder for folder in (above.iterdir() if os.access(above, os.R_OK) else ()) if folder.is_dir()]
    there = sorted(folder.name for folder in beside if (folder / "run.json").is_file())
    if not there:
        return f"there is no run in {above}. {CURE}"
    close = nearest(path.name, there)
    if close:
        return f"did you mean {above / close[0]}?"
    more = f" and {len(there) - most} more" if len(there) > most else ""
    return f"the runs in {above} are {', '.join(there[:most])}{more}"
