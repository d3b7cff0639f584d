"""A file with the weights at the last measurement: compared piece by piece, and replaced as a whole."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.model.weights.checkpoint import CheckpointError, load_torch
from learnscope.store.files import write_atomically
from learnscope.tensor.context import plain
from learnscope.tensor.rows import pieces
from learnscope.tensor.updates.distance import PIECE, squared_distances


class RollingCheckpoint:
    """A torch file with a model's real and complex parameters at one step of one run.

    `torch.load(path, weights_only=True)` gives `{"model": {name: tensor}, "run": …, "step": …}`. The file is mapped,
    not read, and pages are released as soon as they have been compared: neither comparing nor replacing it takes
    memory that grows with the model.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.step: int | None = None
        """The step of the weights in the file; None while it has none of this run."""

    def take_up(self, parameters: Mapping[str, Tensor], step: int) -> str | None:
        """Use an existing file if it belongs to this run and is of a step up to `step`; otherwise return the reason."""
        if not self.path.exists():
            return None
        try:
            run, saved_step, weights = read_rolling(self.path)
        except CheckpointError:
            return f"{self.path} is not a checkpoint of this kind, or damaged; it is kept as {self._set_aside().name}"
        if run != self.run:
            return f"{self.path} is of another run"
        if saved_step > step:
            return f"{self.path} holds the weights of step {saved_step}, which lies ahead of step {step}"
        if _changed(weights, _floats(parameters)):
            return f"{self.path} is of a model with other parameters"
        self.step = saved_step
        return None

    def distances(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """`[2, parameters]` float64: Σ|new − old|² and Σ|old|² of every parameter in the file, in order."""
        run, step, old = read_rolling(self.path)
        if (run, step) != (self.run, self.step):
            raise CheckpointError(
                f"{self.path} no longer holds the weights of step {self.step}: another program wrote it"
            )
        new = _floats(parameters)
        if changed := _changed(old, new):
            raise ValueError(f"parameter {changed[0]} is not what it was at step {self.step}: the model was rebuilt")
        return squared_distances(_parts(new, old), len(new))

    def _set_aside(self) -> Path:
        """Rename a file that is not ours, so that it is not overwritten."""
        names = (self.path.with_name(f"{self.path.stem}.other{number or ''}{self.path.suffix}") for number in count())
        return self.path.rename(next(name for name in names if not name.exists()))

    def replace(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Write the current weights tensor by tensor, and rename the file into place.

        It need not survive a power failure: a file is used only if it is valid, and only to continue a run.
        """
        body = {"model": _floats(parameters), "run": self.run, "step": step}
        checksums = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)  # they take a third of the time, and nothing checks them
        try:
            write_atomically(self.path, lambda temporary: _save(body, temporary), durable=False)
        finally:
            torch.serialization.set_crc32_options(checksums)
        self.step = step


def read_rolling(path: Path) -> tuple[Any, int, Mapping[str, Tensor]]:
    """Run, step and weights of the file, checked, since other programs may replace it."""
    body = load_torch(path)
    step, weights = (body.get("step"), body.get("model")) if isinstance(body, Mapping) else (None, None)
    if not isinstance(step, int) or not isinstance(weights, Mapping):
        raise CheckpointError(f"{path} holds no weights with their step")
    if not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds something else beside weights")
    return body.get("run"), step, weights


def is_compared(parameter: Tensor) -> bool:
    """Whether it is trained: integers are not."""
    return parameter.is_floating_point() or parameter.is_complex()


def _floats(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: plain(p) for name, p in parameters.items() if is_compared(p)}


def _changed(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> list[str]:
    """Parameters that are on one side only or have another shape."""
    shapes = [name for name, tensor in new.items() if name in old and old[name].shape != tensor.shape]
    return [*sorted(old.keys() ^ new.keys()), *shapes]


def _parts(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
    for owner, (name, tensor) in enumerate(new.items()):
        for after, before in pieces((_as_real(tensor), _as_real(old[name])), PIECE):
            yield owner, after, before.to(after.device)
            _release(before)


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _save(body: Mapping[str, Any], path: Path) -> None:
    """Write into a file whose space is allocated beforehand, which takes a third of the time.

    Otherwise the file system allocates all blocks when the file is renamed. A full disk is noticed before writing.
    """
    # weights may share one memory (a flattened LSTM, sharded models), which is written once
    storages = [tensor.untyped_storage() for tensor in body["model"].values()]
    sizes = {(storage.device, storage.data_ptr()): storage.nbytes() for storage in storages}
    reserved = sum(sizes.values()) + 512 * len(storages) + 65_536
    with path.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, reserved)
        torch.save(body, file)
        file.truncate()


_ADVISE: Any = None
with suppress(OSError, AttributeError):  # a C library without madvise
    _ADVISE = ctypes.CDLL(None, use_errno=True).madvise if sys.platform.startswith("linux") else None
_DONT_NEED = 4
_PAGE = 4096 if sys.platform == "win32" else __import__("resource").getpagesize()


def _release(mapped: Tensor) -> None:
    """Tell the system that these pages of a mapped file are not needed: else they count as our memory."""
    if _ADVISE is None or not mapped.is_contiguous():
        return
    start = -(-mapped.data_ptr() // _PAGE) * _PAGE
    stop = (mapped.data_ptr() + mapped.nbytes) // _PAGE * _PAGE
    if stop > start:
        _ADVISE(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(_DONT_NEED))
