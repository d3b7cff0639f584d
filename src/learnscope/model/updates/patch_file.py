"""The file of a patch: a safetensors file.

Its metadata has one JSON under `learnscope`: format, fingerprints, and for each tensor of the base
its names, dtype, shape, digest and what becomes of it. Its tensors, by the first name of each:

| key | what |
|---|---|
| `gaps/<name>` | positions of changed entries in row-major order, see `learnscope.tensor.updates.gaps` |
| `values/<name>` | the new values at these positions, in the tensor's own dtype |
| `whole/<name>` | the whole new tensor, where that is smaller or there is nothing to compare with |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from learnscope.model.updates.patch_info import PatchInfo, TensorChange
from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.sealed import SealedFormat

T = TypeVar("T")
Progress = Callable[[int, int], None]


class PatchError(CheckpointError):
    """A patch that cannot be made, read or applied; the message says why and what to do."""


FORMAT = SealedFormat(
    "patch", 1, "patch", "patches are made by ls.export_patch", "make the patch again", "apply", PatchError
)  # fmt: skip


class PatchFile:
    """A patch opened for reading; its tensors are read when asked for."""

    def __init__(self, path: Path) -> None:
        self._file = FORMAT.open(path)
        self._header = FORMAT.header(self._file)
        try:
            changes = tuple(
                TensorChange(**{**row, "names": tuple(row["names"]), "shape": tuple(row["shape"])})
                for row in self._header["tensors"]
            )
            facts = {name: self._header[name] for name in ("full_bytes", "base", "result", "parameters_only")}
        except (KeyError, TypeError) as error:
            raise self.damaged(f"its header lacks {error}") from error
        self.info = PatchInfo(path=path, bytes=path.stat().st_size, table=changes, **facts)
        self.base_name = next((change.name for change in changes if change.how != "added"), "")
        """A name of a tensor in the base."""

    def tensor(self, part: str, change: TensorChange) -> Tensor:
        key = f"{part}/{change.name}"
        if key not in self._file:
            raise self.damaged(f"{key} is not there")
        return self._file[key]

    def check_seal(self) -> None:
        FORMAT.check_seal(self._header, self._file)

    def damaged(self, reason: str) -> CheckpointError:
        return FORMAT.damaged(self._file.path, reason)

    def __enter__(self) -> PatchFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)


def fingerprint(digests: Mapping[str, str | None]) -> str:
    """One digest for named tensors."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]


def reported(items: Iterable[T], total: int, progress: Progress | None) -> Iterator[T]:
    """The items; `progress(done, total)` is called after each."""
    for done, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(done, total)
