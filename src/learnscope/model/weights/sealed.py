"""Safetensors files with a header of ours and a seal, so that a damaged byte is noticed: patches and packed models."""

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
"""Of the metadata: one JSON, the header."""


@dataclass(frozen=True, slots=True)
class SealedFormat:
    """A kind of such files, and how to speak of them where one cannot be read."""

    kind: str
    version: int
    """A reader refuses a newer one."""
    called: str
    made_by: str
    again: str
    use: str
    error: type[CheckpointError]

    def open(self, path: Path) -> SafetensorsFile:
        if not path.is_file():
            raise self.error(f"there is no {self.kind} file {path}")
        try:
            return SafetensorsFile(path)
        except CheckpointError as error:
            raise self.error(f"{error}: {self.again}, or send it again") from error

    def damaged(self, path: Path, reason: str) -> CheckpointError:
        return self.error(f"{path} is damaged ({reason}): {self.again}, or send it again")

    def header(self, file: SafetensorsFile) -> dict[str, Any]:
        """With its seal, which `check_seal` compares with the contents."""
        try:
            header = json.loads(file.metadata.get(KEY, "null"))
        except json.JSONDecodeError as error:
            raise self.damaged(file.path, "its header is no JSON") from error
        if not isinstance(header, dict) or header.get("kind") != self.kind:
            raise self.error(f"{file.path} is a safetensors file but no {self.called}: {self.made_by}")
        if not isinstance(header.get("format"), int) or header["format"] > self.version:
            raise self.error(
                f"{file.path} has {self.kind} format {header.get('format')}; this learnscope reads up to "
                f"{self.version}. Upgrade learnscope to {self.use} it."
            )
        return header

    def check_seal(self, header: Mapping[str, Any], file: SafetensorsFile) -> None:
        """Refuse a file of which a byte is not as it was written."""
        facts = {name: value for name, value in header.items() if name != "seal"}
        if header.get("seal") != seal_of(facts, file):
            raise self.damaged(file.path, "its contents do not match its seal")

    def write(self, path: Path, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Whole or not at all."""
        header = {"kind": self.kind, "format": self.version, **facts}
        header = json.loads(json.dumps(header))  # as a reader gets it, for the seal
        stored = unshared(tensors)
        metadata = {KEY: json.dumps(header | {"seal": seal_of(header, stored)}, separators=(",", ":"))}
        write_atomically(path, lambda temporary: save_file(stored, temporary, metadata=metadata))


def seal_of(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Digest of the header and of every tensor in the file."""
    whole = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    with hashing() as digest:
        for key in sorted(tensors):
            whole.update(f"{key} {digest(tensors[key])}".encode())
    return whole.hexdigest()[:32]


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with memory of their own, which safetensors demands: what shares it is copied."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart
