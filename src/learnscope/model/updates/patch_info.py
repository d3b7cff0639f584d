"""A patch in numbers, and its file: a safetensors file.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor

from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.sealed import SealedFormat

T = TypeVar("T")
Progress = Callable[[int, int], None]
How = Literal["same", "sparse", "dense", "added", "removed", "replaced"]


@dataclass(frozen=True, slots=True)
class TensorChange:
    """What a patch does to one tensor. Tied names are one tensor."""

    names: tuple[str, ...]
    how: How
    """`same`: nothing; `sparse`, `dense`: new values for some or all entries; `replaced`: other shape or dtype."""
    dtype: str
    shape: tuple[int, ...]
    """As in the base; an added tensor's own."""
    entries: int
    """Of the new tensor; 0 for a removed one."""
    changed: int
    bytes: int
    """Its bytes in the patch."""
    before: str | None = None
    """Digest of the tensor in the base."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def changed_share(self) -> float | None:
        return self.changed / self.entries if self.entries else None


@dataclass(frozen=True, slots=True)
class PatchInfo:
    """A patch in numbers. `full_bytes` is the size of the new checkpoint's tensors, tied ones counted once."""

    path: Path
    bytes: int
    full_bytes: int
    table: tuple[TensorChange, ...]
    base: str | None
    """Fingerprint of the checkpoint the patch applies to: over names, dtypes, shapes and bytes."""
    result: str | None
    """Fingerprint of the resulting checkpoint: the `base` of the next patch in a chain."""
    parameters_only: bool = False
    """Whether other tensors of a target are left alone: a run's states keep floating-point parameters only."""

    @property
    def ratio(self) -> float | None:
        """The file's bytes over `full_bytes`; None if the new checkpoint has no bytes."""
        return self.bytes / self.full_bytes if self.full_bytes else None

    @property
    def changed(self) -> int:
        """Entries whose bits differ, or that are new."""
        return sum(change.changed for change in self.table)

    @property
    def entries(self) -> int:
        return sum(change.entries for change in self.table)

    @property
    def changed_share(self) -> float | None:
        return self.changed / self.entries if self.entries else None

    @property
    def tensors_changed(self) -> int:
        return sum(change.how != "same" for change in self.table)

    @property
    def tensors(self) -> int:
        return len(self.table)

    def __str__(self) -> str:
        text = (
            f"{self.path.name}: {size(self.bytes)}, {share(self.ratio)} of the full {size(self.full_bytes)}; "
            f"{share(self.changed_share)} of {count(self.entries)} entries in {self.tensors_changed} of "
            f"{self.tensors} tensors changed"
        )
        for how in ("added", "removed", "replaced"):
            if number := sum(change.how == how for change in self.table):
                text += f", {number} {how}"
        return text


def size(number: float) -> str:
    """Bytes in decimal units.

    >>> size(999), size(38_400_000)
    ('999 B', '38.4 MB')
    """
    return f"{number} B" if number < 1000 else _scaled(number, "B")


def count(number: float) -> str:
    """
    >>> count(950), count(9_600_000)
    ('950', '9.6 M')
    """
    return str(number) if number < 1000 else _scaled(number)


def share(part: float | None) -> str:
    """A share in per cent with two significant digits.

    >>> share(0.0314), share(0.000012), share(1.0), share(None)
    ('3.1 %', '0.0012 %', '100 %', 'n/a')
    """
    if part is None:
        return "n/a"
    percent = 100 * part
    magnitude = int(f"{percent:e}".split("e")[1])
    digits = 0 if percent == 0 or percent >= 99.95 else max(0, 1 - magnitude) if percent < 1 else 1
    return f"{percent:.{digits}f} %"


def _scaled(number: float, unit: str = "") -> str:
    for prefix in "kMGT":
        number /= 1000
        if number < 999.95 or prefix == "T":
            break
    return f"{number:.1f} {prefix}{unit}"


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
