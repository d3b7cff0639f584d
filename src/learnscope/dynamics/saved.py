"""An analyzer in one file: its options, its records, its arrays and its probes' memories. Never a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from learnscope.record import SCHEMA_VERSION, Record
from learnscope.session.manual import ManualSession, SavedSession
from learnscope.store.files import write_atomically

KEY = "learnscope.dynamics"
VERSION = 1
_PICKLES = (b"\x80", b"PK\x03\x04")
"""How pickles begin, and the archives that torch.save makes of them."""

# names of tensors are JSON lists, which no name of a layer or probe can make ambiguous
_LINES, _ARRAY, _STATE, _OWN = "lines", "array", "state", "own"


class SavedError(ValueError):
    """A file that an analyzer cannot be loaded from, or an analyzer that cannot be saved; the message says why."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file holds: the analyzer's options and arrays, and all that its session needs to go on."""

    options: dict[str, Any]
    arrays: dict[str, Tensor]
    session: SavedSession


def save_session(
    path: str | os.PathLike[str], session: ManualSession, kind: str, options: Mapping[str, Any],
    arrays: Mapping[str, Tensor | NDArray[Any]] | None = None,
) -> Path:  # fmt: skip
    """Write all of it, or leave the file that is there as it was. Any name will do, the content is safetensors.

    `options` are what JSON can hold; `arrays` are the analyzer's own, beside those of its records.
    """
    earlier = session.saved()
    tensors = {_name(_OWN, name): _tensor(array) for name, array in (arrays or {}).items()}
    # lines stand in a tensor: a long run's would not fit into the file's header
    text = "".join(f"{line}\n" for line in earlier.lines).encode()
    tensors[_name(_LINES)] = _tensor(np.frombuffer(text, np.uint8))
    for reference, kept in earlier.arrays.items():
        tensors |= {_name(_ARRAY, reference, name): _tensor(array) for name, array in kept.items()}
    plain: dict[str, dict[str, Any]] = {}
    for probe, state in earlier.states.items():
        plain[probe] = {}
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[_name(_STATE, probe, key)] = _tensor(value)
            else:
                plain[probe][key] = _plain(value, f"the memory {key!r} of {probe}")
    told = {
        "version": VERSION, "schema": SCHEMA_VERSION, "kind": kind, "options": _plain(dict(options), "the options"),
        "manifest": earlier.manifest, "states": plain, "last_step": earlier.last_step,
    }  # fmt: skip
    meta = {KEY: json.dumps(told)}
    target = Path(path)
    write_atomically(target, lambda temporary: save_file(tensors, temporary, metadata=meta))
    return target


def load_session(path: str | os.PathLike[str], kind: str) -> Saved:
    """What `save_session` wrote of an analyzer of this kind; anything else is refused, and nothing is executed."""
    path = Path(path)
    told, tensors = _read(path)
    for what, known in (("version", VERSION), ("schema", SCHEMA_VERSION)):
        if not isinstance(told.get(what), int) or told[what] > known:
            raise SavedError(
                f"{path} was saved with {what} {told.get(what)} of this format; this learnscope reads up to {known}. "
                "Upgrade learnscope to load it."
            )
    if told.get("kind") != kind:
        raise SavedError(f"{path} was saved by {told.get('kind')}, not by {kind}: use {told.get('kind')}.load")
    try:
        return _sorted_out(told, tensors)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise SavedError(f"{path} is damaged ({type(error).__name__}: {error}): save the analyzer anew") from error


def _sorted_out(told: dict[str, Any], tensors: Mapping[str, Tensor]) -> Saved:
    arrays: dict[str, dict[str, NDArray[Any]]] = {}
    states: dict[str, dict[str, Any]] = {probe: dict(plain) for probe, plain in told["states"].items()}
    own: dict[str, Tensor] = {}
    lines: list[str] = []
    for name, tensor in tensors.items():
        what, *rest = json.loads(name)
        if what == _LINES:
            lines = tensor.numpy().tobytes().decode().split("\n")[:-1]
        elif what == _ARRAY:
            if PurePosixPath(rest[0]).parts != ("arrays", Path(rest[0]).name):  # a run folder would write it anywhere
                raise ValueError(f"{rest[0]} is no place of a run's arrays")
            arrays.setdefault(rest[0], {})[rest[1]] = tensor.numpy()
        elif what == _STATE:
            states[rest[0]][rest[1]] = tensor
        else:
            own[rest[0]] = tensor
    for line in lines:
        Record.from_json(line)  # the file was written whole: a line that cannot be read was damaged later
    return Saved(told["options"], own, SavedSession(told["manifest"], lines, arrays, states, told["last_step"]))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is None:
                raise SavedError(f"{path} was not written by an analyzer's save: it has no {KEY}")
            return _told(path, text), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
    except SafetensorError as error:
        with path.open("rb") as start:  # only now: a good file may begin with the same byte, the length of its header
            head = start.read(9)
        # the length of a torn file's header may begin as a pickle does; what follows it does not
        if head.startswith(_PICKLES) and head[2:3] != b"\0" and head[8:9] != b"{":
            raise SavedError(
                f"{path} is a pickle or a torch archive, which can run code when it is read: it is never opened here. "
                "Save the analyzer anew with its save method, whatever the file is called."
            ) from error
        raise SavedError(
            f"{path} is not an analyzer's file, or only a part of one ({error}): save the analyzer anew"
        ) from error


def _told(path: Path, text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError as error:
        raise SavedError(f"{path} is damaged: its description is not JSON ({error})") from error
    if not isinstance(told, dict):
        raise SavedError(f"{path} is damaged: its description is not a JSON object")
    return told


def _name(*parts: str) -> str:
    return json.dumps(parts)


def _tensor(value: Tensor | NDArray[Any]) -> Tensor:
    """On the CPU, with a storage of its own: two names for one storage are refused by the format."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return torch.from_numpy(np.array(value, order="C"))


def _plain(value: Any, what: str) -> Any:
    """The same value, if reading its JSON gives it back as it was."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [_plain(item, what) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, what) for key, item in value.items()}
    raise SavedError(f"{what}: {type(value).__name__} cannot be saved; use numbers, text, lists, or tensors")
