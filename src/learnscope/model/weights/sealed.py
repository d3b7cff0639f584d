"""Patches and packed models: safetensors files with a header and a seal, which reveals a damaged byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from learnscope.model.weights.checkpoint import CheckpointError
from learnscope.model.weights.lazy import SafetensorsFile, hashing
from learnscope.store.files import write_atomically

KEY = "learnscope"
"""The header in the metadata, as one JSON."""


@dataclass(frozen=True, slots=True)
class SealedFormat:
    """A kind of such files, and the words for errors when one cannot be read."""

    kind: str
    version: int
    """A reader refuses a newer one."""
    name: str
    made_by: str
    remake: str
    action: str
    error: type[CheckpointError]

    def open(self, path: Path) -> SafetensorsFile:
        if not path.is_file():
            raise self.error(f"there is no {self.kind} file {path}")
        try:
            return SafetensorsFile(path)
        except CheckpointError as error:
            raise self.error(f"{error}: {self.remake}, or send it again") from error

    def damaged(self, path: Path, reason: str) -> CheckpointError:
        return self.error(f"{path} is damaged ({reason}): {self.remake}, or send it again")

    def header(self, file: SafetensorsFile) -> dict[str, Any]:
        """With its seal, which `check_seal` compares with the contents."""
        try:
            header = json.loads(file.metadata.get(KEY, "null"))
        except json.JSONDecodeError as error:
            raise self.damaged(file.path, "its header is no JSON") from error
        if not isinstance(header, dict) or header.get("kind") != self.kind:
            raise self.error(f"{file.path} is a safetensors file but no {self.name}: {self.made_by}")
        if not isinstance(header.get("format"), int) or header["format"] > self.version:
            raise self.error(
                f"{file.path} has {self.kind} format {header.get('format')}; this learnscope reads up to "
                f"{self.version}. Upgrade learnscope to {self.action} it."
            )
        return header

    def check_seal(self, header: Mapping[str, Any], file: SafetensorsFile) -> None:
        """Refuse a file if a byte has changed since it was written."""
        facts = {name: value for name, value in header.items() if name != "seal"}
        if header.get("seal") != seal_of(facts, file):
            raise self.damaged(file.path, "its contents do not match its seal")

    def write(self, path: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Whole or not at all."""
        stored = unshared(tensors)
        metadata = self.metadata(facts, seal=seal_of(self._header(facts), stored))
        write_atomically(path, lambda temporary: save_file(stored, temporary, metadata=metadata))

    def metadata(self, facts: Mapping[str, Any], *, seal: str) -> dict[str, str]:
        """Of a file with this header."""
        return {KEY: json.dumps(self._header(facts) | {"seal": seal}, separators=(",", ":"))}

    def _header(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """As a reader gets it, for the seal."""
        header: dict[str, Any] = json.loads(json.dumps({"kind": self.kind, "format": self.version, **facts}))
        return header


def seal_of(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Digest of the header and of every tensor in the file."""
    seal = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    with hashing() as digest:
        for key in sorted(tensors):
            seal.update(f"{key} {digest(tensors[key])}".encode())
    return seal.hexdigest()[:32]


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, copied where they share memory, which safetensors does not allow."""
    owners: dict[int, str] = {}
    for name, tensor in tensors.items():
        owners.setdefault(tensor.untyped_storage().data_ptr(), name)
    first = set(owners.values())
    return {name: tensor if name in first else tensor.clone() for name, tensor in tensors.items()}
