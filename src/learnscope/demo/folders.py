"""The demo's folders: runs of an earlier demo are replaced, anything else is left alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import learnscope as ls
from learnscope.demo.scenario import DemoRun


def check_free(folders: Iterable[Path]) -> None:
    """Raise a `RunError`, before anything is trained or removed, if a folder was not made by the demo."""
    for folder in folders:
        if not is_free(folder) and not is_demo_run(folder):
            raise ls.RunError(
                f"{folder} is there already and is not a run of this demo; it is left as it is. "
                "Name another folder with --out, or move that one away."
            )


def clear(folder: Path) -> None:
    """Remove the earlier demo's run, if there is one."""
    if is_demo_run(folder):
        shutil.rmtree(folder)


def is_free(folder: Path) -> bool:
    """Whether there is nothing, or an empty folder."""
    empty = folder.is_dir() and not any(folder.iterdir())
    return not folder.is_symlink() and (empty or not folder.exists())


def is_demo_run(folder: Path) -> bool:
    """Whether its run.json lists the probe DemoRun, as every run of the demo does, finished or interrupted."""
    try:
        manifest = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        scenario = manifest["probes"][DemoRun.__name__]["scenario"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(scenario == folder.name) and not folder.is_symlink()  # a link's target may belong to something else
