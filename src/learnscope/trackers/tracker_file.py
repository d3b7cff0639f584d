"""A tracker's file: a torch archive of plain names, numbers and tensors, read without running anything from it."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.store.files import write_atomically
from learnscope.trackers.history import History
from learnscope.trackers.packing import packed, unpacked

FORMAT = "learnscope.trackers"
VERSION = 1


class TrackerFileError(ValueError):
    """A file that a tracker cannot be loaded from, or a tracker that cannot be saved; the message says why."""


def write_tracker(
    path: Path, kind: str, options: Mapping[str, Any], history: History, states: Mapping[str, Mapping[str, Any]] | None
) -> None:
    """Write all of it, or leave an earlier file as it was."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "options": dict(options),
        "history": packed(history),
        "states": None if states is None else {probe: _plain(dict(state), probe) for probe, state in states.items()},
    }

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a path, torch would write its name into the file
            torch.save(body, file)

    write_atomically(path, write)


def read_tracker(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, Any], History, dict[str, dict[str, Any]] | None]:
    """The options, the history and the probes' states of a tracker of this kind. Anything else is refused."""
    path = Path(path)
    body = _read(path)
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise TrackerFileError(f"{path} was not written by a tracker's save: it does not say {FORMAT!r} of itself")
    version = body.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise TrackerFileError(
            f"{path} was saved with version {version} of this format; this learnscope reads up to {VERSION}. "
            "Upgrade learnscope to load it."
        )
    if body.get("kind") != kind:
        raise TrackerFileError(f"{path} was saved by {body.get('kind')}, not by {kind}: use {body.get('kind')}.load")
    try:
        states = body["states"]
        states = None if states is None else {str(probe): dict(state) for probe, state in states.items()}
        return dict(body["options"]), unpacked(body["history"]), states
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise TrackerFileError(f"{path} is damaged ({type(error).__name__}: {error}): save the tracker anew") from error


def _read(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"there is no tracker's file {path}: name one that a tracker's save has written")
    try:
        body = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as archive:  # torch reads numbers that were changed on disk without a word
            changed = archive.testzip()
    except pickle.UnpicklingError as error:  # torch's own words advise to run the file's code
        raise TrackerFileError(
            f"{path} is a pickle, or holds objects beside plain names, numbers and tensors: reading them can run code, "
            "so they are never read here. Save the tracker anew with its save method."
        ) from error
    except Exception as error:  # bytes that are no archive fail in whatever way they are misread
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TrackerFileError(
            f"{path} is not a tracker's file, or only a part of one ({reason}): save the tracker anew"
        ) from error
    if changed is not None:
        raise TrackerFileError(
            f"{path} is damaged ({changed} is not what was written): save the tracker anew, or take an earlier file"
        )
    return body


def _plain(value: Any, what: str) -> Any:
    """A copy of what a file may hold."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, what) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, what) for key, item in value.items()}
    raise TrackerFileError(f"the memory of {what} holds a {type(value).__name__}, which cannot be saved")
