"""Analyzers that record in a session, and such an analyzer in one file: options, run and probe memories. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from learnscope.core.probe import Probe
from learnscope.record import SCHEMA_VERSION, Record
from learnscope.run import Run
from learnscope.session.manual import ManualSession, SavedSession, own_backend
from learnscope.store.files import write_atomically

KEY = "learnscope.dynamics"
VERSION = 1
_PICKLES = (b"\x80", b"PK\x03\x04")
"""How pickles begin, and the archives that torch.save makes of them."""


class SavedError(ValueError):
    """A file that an analyzer cannot be loaded from, or an analyzer that cannot be saved; the message says why."""


class RecordingAnalyzer:
    """An analyzer whose probes record in memory, or in a folder `run`."""

    def __init__(self, probes: Mapping[str, Probe], run: str | os.PathLike[str] | None) -> None:
        self._session = ManualSession(probes, own_backend(None if run is None else Path(run)), source="dynamics")

    @property
    def run(self) -> Run:
        """All that was recorded."""
        return self._session.run


def save_session(path: str | os.PathLike[str], session: ManualSession, kind: str, options: Mapping[str, Any]) -> Path:
    """Write all of it, or leave the existing file as it was. Any name is allowed, the content is safetensors.

    `options` are what JSON can hold.
    """
    saved = session.saved()
    # lines stand in a tensor: a long run's would not fit into the file's header
    text = "".join(f"{line}\n" for line in saved.lines).encode()
    tensors = {_name("lines"): _tensor(np.frombuffer(text, np.uint8))}
    for reference, arrays in saved.arrays.items():
        tensors |= {_name("array", reference, name): _tensor(array) for name, array in arrays.items()}
    plain_states: dict[str, dict[str, Any]] = {}
    for probe, state in saved.states.items():
        tensors |= {_name("state", probe, key): _tensor(v) for key, v in state.items() if isinstance(v, Tensor)}
        plain = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        plain_states[probe] = {key: _plain(value, f"the memory {key!r} of {probe}") for key, value in plain.items()}
    description = {
        "version": VERSION, "schema": SCHEMA_VERSION, "kind": kind, "options": _plain(dict(options), "the options"),
        "manifest": saved.manifest, "states": plain_states, "last_step": saved.last_step,
    }  # fmt: skip
    metadata = {KEY: json.dumps(description)}
    write_atomically(Path(path), lambda temporary: save_file(tensors, temporary, metadata=metadata))
    return Path(path)


def load_session(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], SavedSession]:
    """Options and session that `save_session` wrote of an analyzer of this kind; anything else is refused."""
    path = Path(path)
    text, tensors = _read(path)
    try:
        description = json.loads(text)
        refusal = _refusal(description, kind)
        if refusal is None:
            return description["options"], _session(description, tensors)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise SavedError(f"{path} is damaged ({type(error).__name__}: {error}): save the analyzer anew") from error
    raise SavedError(f"{path} was saved {refusal}")


def _read(path: Path) -> tuple[str, dict[str, Tensor]]:
    """The description and the tensors of a file; no code in it is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(KEY)
            if text is None:
                raise SavedError(f"{path} was not written by an analyzer's save: it has no {KEY}")
            return text, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
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


def _refusal(description: dict[str, Any], kind: str) -> str | None:
    for name, newest in (("version", VERSION), ("schema", SCHEMA_VERSION)):
        number = description.get(name)
        if not isinstance(number, int) or number > newest:
            return (
                f"with {name} {number} of this format; this learnscope reads up to {newest}. "
                "Upgrade learnscope to load it."
            )
    saved_kind = description.get("kind")
    return None if saved_kind == kind else f"by {saved_kind}, not by {kind}: use {saved_kind}.load"


def _session(description: dict[str, Any], tensors: Mapping[str, Tensor]) -> SavedSession:
    arrays: dict[str, dict[str, NDArray[Any]]] = {}
    states: dict[str, dict[str, Any]] = {probe: dict(plain) for probe, plain in description["states"].items()}
    lines: list[str] = []
    for name, tensor in tensors.items():
        match json.loads(name):
            case ["lines"]:
                lines = tensor.numpy().tobytes().decode().split("\n")[:-1]
            case ["array", reference, key]:
                if PurePosixPath(reference).parts != ("arrays", Path(reference).name):
                    raise ValueError(f"{reference} is no place of a run's arrays")  # it would be written anywhere
                arrays.setdefault(reference, {})[key] = tensor.numpy()
            case ["state", probe, key]:
                states[probe][key] = tensor
    for line in lines:
        Record.from_json(line)  # the file was written whole: a line that cannot be read was damaged later
    return SavedSession(description["manifest"], lines, arrays, states, description["last_step"])


def _name(*parts: str) -> str:
    """Of a tensor, as a JSON list, which no name of a layer or probe can make ambiguous."""
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
