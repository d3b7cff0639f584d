"""Where a run is stored: a folder, or memory. Both hold the same lines, arrays, manifest and state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from learnscope.record import SCHEMA_VERSION, Record
from learnscope.store.columnar.blocks import Segment
from learnscope.store.columnar.decode import Decoder
from learnscope.store.columnar.index import refresh
from learnscope.store.errors import LinesLost as LinesLost
from learnscope.store.errors import RunError as RunError
from learnscope.store.files import has_run, remove_leftovers, write_atomically, write_json
from learnscope.store.lines import CutError, LineFile, records_in
from learnscope.store.locks import Busy
from learnscope.store.manifest import NotAManifest, read_manifest

Arrays = Mapping[str, NDArray[Any]]

WRITE_ERRORS = (OSError, RunError, SafetensorError)
"""What writing to a run may raise: a full disk, a folder that was removed, or another writer's."""


def load(module: str, purpose: str) -> Any:
    """An optional package's module; if it is missing, the error says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise RunError(f"{purpose} needs {package}, which is not installed: pip install learnscope[sql]") from error


class LedgerLike(Protocol):
    """The part of a ledger of examples that a run needs."""

    def arrays(self) -> dict[str, NDArray[Any]]: ...
    def save_in(self, folder: Path) -> None: ...


class MemoryBackend:
    """A run with nothing on disk."""

    def __init__(self) -> None:
        self._manifest: dict[str, Any] = {}
        self._lines: list[bytes] = []
        self._arrays: dict[str, dict[str, NDArray[Any]]] = {}
        self.examples: dict[str, NDArray[Any]] | None = None
        """The arrays of the ledger of examples, if there is one."""
        self.shown: Any = None  # what a folder has as shown.json

    def manifest(self) -> dict[str, Any]:
        return dict(self._manifest)

    last_manifest = manifest

    def put_manifest(self, manifest: Mapping[str, Any]) -> None:
        self._manifest = dict(manifest)

    def append(self, line: str) -> None:
        self._lines.append(line.encode())

    def append_later(self, line: str) -> None:
        self.append(line)

    def write_out(self) -> None:
        """There is nothing to write."""

    @property
    def lines_written(self) -> int:
        return len(self._lines)

    def records(self, problems: list[str]) -> Iterator[Record]:
        return records_in(list(self._lines), problems)

    def segments(self) -> list[Segment]:
        """The same by their form."""
        lines = iter(list(self._lines))
        pieces = iter(lambda: b"".join(line + b"\n" for line in islice(lines, 1024)), b"")
        return list(Decoder().segments(pieces))

    def put_arrays(self, reference: str, arrays: Arrays) -> bool:
        self._arrays[reference] = {name: np.array(value) for name, value in arrays.items()}
        return True

    def arrays(self, reference: str) -> dict[str, NDArray[Any]]:
        return dict(self._arrays[reference])

    def put_examples(self, ledger: LedgerLike) -> None:
        self.examples = ledger.arrays()

    def state_path(self, step: int) -> Path | None:  # noqa: ARG002  (the protocol's signature)
        return None

    def may_write(self) -> bool:
        return True

    def close(self) -> None:
        pass


class FolderBackend:
    """A run folder. One process writes it at a time; any number may read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: LineFile | None = None
        self._manifest: dict[str, Any] | None = None
        self._later: list[str] = []
        self.lines_written = 0
        """By this object, whoever asked for it."""
        self._is_new = False
        self._elsewhere: Callable[[], Path] | None = None

    @classmethod
    def create(cls, path: Path, elsewhere: Callable[[], Path] | None = None) -> FolderBackend:
        """A new run; refused if the folder holds one already, since data is never overwritten.

        Nothing is written yet. If another process begins a run here before that, `elsewhere` says where this one goes.
        """
        if has_run(path):
            raise RunError(
                f"{path} already holds a run. Continue it with resume=True, name another folder, "
                "or remove that one if it is no longer wanted."
            )
        backend = cls(path)
        backend._is_new, backend._elsewhere = True, elsewhere
        return backend

    @classmethod
    def existing(cls, path: Path) -> FolderBackend:
        """An existing run, of a version that this code can read."""
        if not (path / "run.json").is_file():
            raise RunError(f"{path} is not a run folder: it has no run.json. Runs are made by ls.watch(run=…).")
        backend = cls(path)
        version = backend.manifest().get("schema")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise RunError(
                f"{path} was written with run schema {version}; this learnscope reads up to {SCHEMA_VERSION}. "
                "Upgrade learnscope to open it."
            )
        return backend

    def manifest(self) -> dict[str, Any]:
        return self.checked_manifest()[0]

    def checked_manifest(self) -> tuple[dict[str, Any], list[str]]:
        """What run.json holds, and what of it was left out because it is damaged."""
        try:
            return read_manifest(self.path / "run.json")
        except NotAManifest as error:
            raise RunError(f"{error}.") from error

    def last_manifest(self) -> dict[str, Any]:
        """What run.json holds; if somebody has removed or damaged it meanwhile, what was last written to it."""
        try:
            return self.manifest()
        except RunError:
            if self._manifest is None:
                raise
            return dict(self._manifest)

    def put_manifest(self, manifest: Mapping[str, Any]) -> None:
        if self.may_write(self._open()):
            write_json(self.path / "run.json", dict(manifest))
            self._manifest = dict(manifest)

    def append(self, line: str) -> None:
        self._open().append(line)
        self.lines_written += 1

    def append_later(self, line: str) -> None:
        """Append with the next `write_out`, which comes before anything else of this run is read or written here."""
        self._later.append(line)

    def write_out(self) -> None:
        """Write the lines that were kept back. If not all can be written, as many as possible are."""
        lines, self._later = self._later, []
        if not lines:
            return
        try:
            self._open().append(*lines)
        except WRITE_ERRORS as error:
            lost = self._one_by_one(lines, error)
            self.lines_written += max(0, len(lines) - lost)
            if lost:
                raise LinesLost(lost, error) from error
        else:
            self.lines_written += len(lines)

    def _one_by_one(self, lines: list[str], error: Exception) -> int:
        """Write what can be written after all together could not; returns how many lines are lost."""
        lost = 0
        if isinstance(error, CutError):  # lines of before are lost: at least the run says so
            lines, lost = lines[1:], 1
        for line in lines:
            try:
                self._open().append(line)
            except WRITE_ERRORS:
                lost += 1
        return lost

    def records(self, problems: list[str]) -> Iterator[Record]:
        """Every record in the order of writing; what is wrong with other lines is added to `problems`."""
        from learnscope.store.parts import opened

        self.write_out()
        with opened(self.path) as parts:
            yield from parts.records(problems)

    def segments(self) -> list[Segment]:
        """The same by their form, from the index of the folder as far as it has them."""
        from learnscope.store.parts import opened

        self.write_out()
        with opened(self.path) as parts:
            return parts.segments(self.path)

    def hold(self) -> None:
        """Lock out other writers until `close`."""
        self._open()

    def put_arrays(self, reference: str, arrays: Arrays) -> bool:
        """Returns whether they were written: not in a forked child, whose parent goes on writing."""
        contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        if not self.may_write():
            return False
        write_atomically(self.path / reference, lambda temporary: save_file(contiguous, temporary))
        return True

    def arrays(self, reference: str) -> dict[str, NDArray[Any]]:
        path = (self.path / reference).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise RunError(f"a record of {self.path} refers to {reference}, which lies outside the run folder")
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path} is missing or damaged ({error})") from error

    def put_examples(self, ledger: LedgerLike) -> None:
        if self.may_write():
            ledger.save_in(self.path)

    def state_path(self, step: int) -> Path | None:
        return self.path / "state" / f"step-{step:010d}.safetensors"

    def close(self) -> None:
        try:
            self.write_out()
        finally:
            if self._file is not None:
                file, self._file = self._file, None
                file.close()
                if file.is_ours:
                    refresh(self.path)

    def _open(self) -> LineFile:
        while self._file is None:
            try:
                self._file, self._is_new = self._claimed(), False
                remove_leftovers(self.path, before=time.time())
            except Busy as error:
                place = self._elsewhere() if self._elsewhere is not None else self.path
                if place == self.path:
                    raise RunError(
                        f"{self.path} is being written by another process; give this run its own folder."
                    ) from error
                self.path = place
            except OSError as error:
                raise RunError(f"{self.path / 'records.jsonl'} cannot be written ({error})") from error
        return self._file

    def _claimed(self) -> LineFile:
        """The file, locked; of a new run only if nobody has begun one here since the folder was found free."""
        file = LineFile(self.path / "records.jsonl")
        if self._is_new and (self.path / "run.json").exists():
            file.close()
            raise Busy
        return file

    def may_write(self, file: LineFile | None = None) -> bool:
        """False in a forked child; an error if the folder is no longer the one that was opened."""
        file = file or self._file
        if file is not None:
            file.check_place()
        return file is None or file.is_ours


Backend = MemoryBackend | FolderBackend
