"""Which trainings a path holds, and in which format: files by their names, folders by what is inside."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from learnscope.importing import table, tensorboard, trainer, wandb
from learnscope.importing.foreign import Foreign, Progress
from learnscope.importing.settings_file import settings_beside
from learnscope.options import did_you_mean, nearest
from learnscope.store.errors import RunError

Format = Literal["auto", "tensorboard", "wandb", "trainer", "csv"]
FORMATS: tuple[str, ...] = get_args(Format)
TABLES = (".csv", ".tsv")
USUAL_TABLES = ("metrics", "results", "log", "progress", "history", "training_log")
"""Tables of logs, by their names; these say nothing about the training, and the folder's is taken."""
_SKIPPED = frozenset({"checkpoints", "__pycache__", ".git", "node_modules"})
PARTS = frozenset({"train", "training", "validation", "val", "valid", "eval", "evaluation", "test"})
"""Folders that hold parts of one training, as Keras writes them, rather than trainings of their own."""


@dataclass(frozen=True)
class Place:
    """Where one training is."""

    format: str
    name: str
    """What it is called below the path that was given."""
    files: tuple[Path, ...]
    parts: tuple[tuple[str, tuple[Path, ...]], ...] = ()
    """Of event files: the name that their folder adds, and the files."""

    def read(self, *, step: str | None, leave_out: Sequence[str], progress: Progress) -> Foreign:
        """Everything that the training's files say."""
        if self.format == "csv":
            source = table.read(self.files[0], name=self.name, step=step, leave_out=leave_out, progress=progress)
        elif self.format == "tensorboard":
            source = tensorboard.read(self.parts, name=self.name, step=step, progress=progress)
        elif self.format == "wandb":
            return wandb.read(self.files, name=self.name, step=step, progress=progress)
        else:
            return trainer.read(self.files[0], name=self.name, step=step, progress=progress)
        notes = list(source.notes)
        source.config = settings_beside(self.files[0].parent, notes) | dict(source.config)
        source.notes = notes
        return source


def find_places(source: Path, format: str = "auto") -> list[Place]:
    """The trainings at or below a path, by name; refused with what is there instead if there is none."""
    if format not in FORMATS:
        raise RunError(f"there is no format {format!r}.{did_you_mean(format, FORMATS)} There are {', '.join(FORMATS)}")
    if not source.exists():
        raise RunError(f"{source} is not there: {_near(source)}")
    if source.is_file():
        return [_of_file(source, format)]
    found = [place for kind, look in _LOOKS.items() if format in ("auto", kind) for place in look(source)]
    if format == "auto":  # tables may hold anything: by their names alone, or where there is nothing else
        known = [place for place in found if place.format != "csv" or place.files[0].stem in USUAL_TABLES]
        found = known or found
    if not found:
        raise RunError(_nothing_in(source, format))
    return _own_names(sorted(found, key=lambda place: (place.name, FORMATS.index(place.format))))


def _of_file(path: Path, format: str) -> Place:
    known = {
        "tensorboard": fnmatch.fnmatch(path.name, tensorboard.PATTERN), "wandb": path.suffix == ".wandb",
        "trainer": path.suffix == ".json", "csv": path.suffix.lower() in TABLES,
    }  # fmt: skip
    kind = next((kind for kind, yes in known.items() if yes), None) if format == "auto" else format
    if kind is None:
        raise RunError(
            f"{path} is none of the files that are known by their names: {tensorboard.PATTERN}, {wandb.PATTERN}, "
            f"{trainer.FILE}, *{', *'.join(TABLES)}. Say what it is: --format {'|'.join(FORMATS[1:])}"
        )
    name = path.stem if kind == "csv" and path.stem not in USUAL_TABLES else path.resolve().parent.name or path.stem
    return Place(kind, name, (path,), (("", (path,)),) if kind == "tensorboard" else ())


def _event_folders(root: Path) -> Iterator[Place]:
    """Folders with event files, each a training; those that hold parts of the one above belong to it."""
    folders = {folder: files for folder in _walk(root) if (files := tensorboard.event_files(folder))}
    homes: dict[Path, list[tuple[str, tuple[Path, ...]]]] = {}
    for folder, files in folders.items():
        home = _home(folder, root, folders)
        inside = "" if home == folder else tensorboard.part_name(folder.relative_to(home).as_posix())
        homes.setdefault(home, []).append((inside, tuple(files)))
    for home, parts in homes.items():
        yield Place("tensorboard", _name(home, root), tuple(f for _, files in parts for f in files), tuple(parts))


def _home(folder: Path, root: Path, folders: Mapping[Path, Sequence[Path]]) -> Path:
    """The folder of the training that a folder with event files belongs to."""
    above = folder.parent
    if folder == root:
        return folder
    beside = {each.name for each in folders if each.parent == above}
    if beside <= PARTS or (above in folders and tensorboard.is_part(folder.name, folders[folder])):
        return _home(above, root, folders) if above in folders else above
    return folder


def _wandb_folders(root: Path) -> Iterator[Place]:
    """Files of wandb, once each though `latest-run` leads there too; those of one run that was resumed together."""
    by_id: dict[str, set[Path]] = {}
    for folder in _walk(root):
        for file in folder.glob(wandb.PATTERN):
            by_id.setdefault(file.stem.removeprefix("run-"), set()).add(file.resolve())
    top = root.resolve()
    for found in by_id.values():
        files = sorted(found, key=lambda file: file.parent.name.rpartition("run-20")[2])  # by the time in its name
        folder = files[-1].parent
        yield Place("wandb", _name(folder, top) if folder.is_relative_to(top) else folder.name, tuple(files))


def _states(root: Path) -> Iterator[Place]:
    """States of a Trainer; of those in checkpoints of one folder, and in the folder itself, the last."""
    homes: dict[Path, list[Path]] = {}
    for folder in _walk(root):
        state = folder / trainer.FILE
        if state.is_file():
            is_checkpoint = folder.name.startswith("checkpoint-")
            homes.setdefault(folder.parent if is_checkpoint else folder, []).append(state)
    for home, states in homes.items():
        chosen = max(states, key=_checkpoint)
        under = root if home == root or root in home.parents else home
        yield Place("trainer", _name(home, under), (chosen,))


def _checkpoint(state: Path) -> float:
    """The step that the name of its folder gives; the state that is in none was written last."""
    number = state.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() and state.parent.name.startswith("checkpoint-") else float("inf")


def _tables(root: Path) -> Iterator[Place]:
    for folder in _walk(root):
        for file in sorted(path for path in folder.iterdir() if path.suffix.lower() in TABLES and path.is_file()):
            usual = file.stem in USUAL_TABLES
            name = _name(folder, root) if usual else "-".join([*folder.relative_to(root).parts, file.stem])
            yield Place("csv", name, (file,))


_LOOKS: dict[str, Callable[[Path], Iterator[Place]]] = {
    "tensorboard": _event_folders, "wandb": _wandb_folders, "trainer": _states, "csv": _tables,
}  # fmt: skip


def _walk(root: Path) -> Iterator[Path]:
    """Folders in the order of their names, those above first; not the insides of runs of learnscope."""
    seen: set[str] = set()
    for current, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(current)
        if real in seen or "run.json" in files:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        yield Path(current)


def _name(folder: Path, root: Path) -> str:
    """The way from the given folder, else the folder's own name."""
    parts = folder.relative_to(root).parts if folder != root else ()
    return "-".join(parts) or folder.resolve().name or "imported"


def _own_names(places: list[Place]) -> list[Place]:
    """Trainings of several formats in one folder get the format behind their names."""
    names = [place.name for place in places]
    return [
        place if names.count(place.name) == 1 else replace(place, name=f"{place.name}-{place.format}")
        for place in places
    ]


def _near(source: Path) -> str:
    above = next((folder for folder in source.parents if folder.is_dir()), Path())
    there = sorted(path.name for path in above.iterdir()) if os.access(above, os.R_OK) else []
    close = nearest(source.name, there)
    if close:
        return f"did you mean {above / close[0]}?"
    listed = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
    return f"{above} has {listed}" if there else f"{above} is empty"


def _nothing_in(source: Path, format: str) -> str:
    if (source / "run.json").is_file():
        return f"{source} is a run of learnscope already: ls.open_run, learnscope report"
    inside = sorted(path.name for path in source.iterdir())
    listed = ", ".join(inside[:8]) + (f" and {len(inside) - 8} more" if len(inside) > 8 else "") or "nothing"
    wanted = {
        "tensorboard": f"event files ({tensorboard.PATTERN})", "wandb": f"files of wandb ({wandb.PATTERN})",
        "trainer": trainer.FILE, "csv": f"tables (*{', *'.join(TABLES)})",
    }  # fmt: skip
    missing = ", ".join(wanted.values()) if format == "auto" else wanted[format]
    return f"at or below {source} there is nothing to import: no {missing}. It has {listed}"
