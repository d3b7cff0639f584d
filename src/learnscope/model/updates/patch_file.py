"""The file of a patch, and what is said about it.

A safetensors file. Its metadata has one JSON under `learnscope`: format, fingerprints, and for each tensor of the base
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
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from learnscope.model.updates.patch_info import PatchInfo, TensorChange
from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.lazy import SafetensorsFile, hashing
from learnscope.store.files import write_atomically

FORMAT = 1
"""Version of the format. A reader refuses a newer one."""


class PatchError(CheckpointError):
    """A patch that cannot be made, read or applied; the message says why and what to do."""


class PatchFile:
    """A patch opened for reading; its tensors are read when asked for."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise PatchError(f"there is no patch file {path}")
        try:
            self._file = SafetensorsFile(path)
        except CheckpointError as error:
            raise PatchError(f"{error}: make the patch again, or send it again") from error
        self._header = _header(self._file)
        self._seal = self._header.pop("seal", None)
        try:
            changes = tuple(
                TensorChange(**{**row, "names": tuple(row["names"]), "shape": tuple(row["shape"])})
                for row in self._header["tensors"]
            )
            facts = {name: self._header[name] for name in ("full_bytes", "base", "result", "parameters_only")}
        except (KeyError, TypeError) as error:
            raise self.damaged(f"its header lacks {error}") from error
        self.info = PatchInfo(path=path, bytes=path.stat().st_size, table=changes, **facts)

    def tensor(self, part: str, change: TensorChange) -> Tensor:
        key = f"{part}/{change.name}"
        if key not in self._file:
            raise self.damaged(f"{key} is not there")
        return self._file[key]

    def check_seal(self) -> None:
        """Refuse a file of which a byte is not as it was written."""
        if self._seal != seal_of(self._header, self._file):
            raise self.damaged("its contents do not match its seal")

    def damaged(self, reason: str) -> PatchError:
        return PatchError(f"{self._file.path} is damaged ({reason}): make the patch again, or send it again")

    def __enter__(self) -> PatchFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)


def write_patch(
    path: Path,
    table: Iterable[TensorChange],
    tensors: Mapping[str, Tensor],
    after: Mapping[str, str] | None,
    **facts: Any,
) -> PatchInfo:
    """Write a patch whole or not at all. `after` has the digests of what changed; None: do without fingerprints."""
    changes = tuple(table)
    facts |= {"base": None, "result": None}
    if after is not None:
        facts["base"] = fingerprint({change.name: change.before for change in changes if change.how != "added"})
        facts["result"] = fingerprint(
            {change.name: after.get(change.name, change.before) for change in changes if change.how != "removed"}
        )
    header = {"kind": "patch", "format": FORMAT, **facts, "tensors": [asdict(change) for change in changes]}
    header = json.loads(json.dumps(header))  # as a reader gets it, for the seal
    stored = unshared(tensors)
    metadata = {"learnscope": json.dumps(header | {"seal": seal_of(header, stored)}, separators=(",", ":"))}
    write_atomically(path, lambda temporary: save_file(stored, temporary, metadata=metadata))
    return PatchInfo(path=path, bytes=path.stat().st_size, table=changes, **facts)


def fingerprint(digests: Mapping[str, str | None]) -> str:
    """One digest for named tensors."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with memory of their own, which safetensors demands: what shares it is copied."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart


def _header(file: SafetensorsFile) -> dict[str, Any]:
    try:
        header = json.loads(file.metadata.get("learnscope", "null"))
    except json.JSONDecodeError as error:
        raise PatchError(f"{file.path} is damaged (its header is no JSON): make the patch again") from error
    if not isinstance(header, dict) or header.get("kind") != "patch":
        raise PatchError(f"{file.path} is a safetensors file but no patch: patches are made by ls.export_patch")
    if not isinstance(header.get("format"), int) or header["format"] > FORMAT:
        raise PatchError(
            f"{file.path} has patch format {header.get('format')}; this learnscope reads up to {FORMAT}. "
            "Upgrade learnscope to apply it."
        )
    return header


def seal_of(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Digest of the header and of every tensor in the file, so that a damaged byte is noticed."""
    whole = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    with hashing() as digest:
        for key in sorted(tensors):
            whole.update(f"{key} {digest(tensors[key])}".encode())
    return whole.hexdigest()[:32]
