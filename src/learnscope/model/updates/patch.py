"""The sparse update from one checkpoint to the next: what a trainer ships to its samplers every few steps.

Entries are compared bit by bit: 0.0 and −0.0 differ, a NaN equals the same NaN. A changed entry takes its own bytes
and one to four for its position, see `learnscope.tensor.updates.gaps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnscope.model.updates.patch_info import (
    FORMAT,
    How,
    PatchError,
    PatchInfo,
    Progress,
    TensorChange,
    fingerprint,
    reported,
)
from learnscope.model.weights.lazy import (
    SafetensorsFile,
    bits,
    check_storable,
    dtype_name,
    hashing,
    identities,
    on_host,
    open_weights,
)
from learnscope.tensor.updates import gaps

HEADER = 100
"""Approximate bytes of one more tensor in the header of a safetensors file."""
PIECE = 1 << 20
"""Entries compared at a time: masks as large as whole tensors would fragment the heap."""


def export_patch(
    old: Any, new: Any, path: str | Path, *, verify: bool = True, progress: Progress | None = None
) -> PatchInfo:
    """Write the patch that turns the checkpoint `old` into `new`, bit for bit, as a safetensors file.

    `old` and `new` are modules, state dictionaries, `.safetensors` or torch files. Files are read one tensor at a time:
    this needs memory for the patch and for the largest tensor (twice that if both are on an accelerator, and 8 bytes
    for each of its changed entries).

    Tied names count as one tensor, whichever of them a checkpoint stores. Tensors that were added, removed or have
    another shape or dtype are part of the patch. Random changes to 1 % of bfloat16 entries take 1.6 % of the full
    size, to 1 % of float32 entries 1.4 %.

    `verify` stores digests of the base's tensors in the patch, by which `apply_patch` checks the base. It reads both
    checkpoints once more, with SHA-256 at about 1.5 GB/s per core. `progress(done, total)` is called after each tensor.
    """
    path = Path(path)
    for checkpoint in (old, new):
        if isinstance(checkpoint, str | Path) and Path(checkpoint).resolve() == path.resolve():
            raise PatchError(f"the patch would overwrite the checkpoint {checkpoint}: name another file")
    with open_weights(old) as before, open_weights(new) as after, hashing() as digest:
        check_storable(before)
        check_storable(after)
        pairs = _paired(before, after)
        partial = _parameters_only(before, after, pairs)
        table: list[TensorChange] = []
        tensors: dict[str, Tensor] = {}
        digests: dict[str, str] = {}
        for pair in reported(pairs, len(pairs), progress):
            left = on_host(before[pair.old]) if pair.old is not None else None
            right = on_host(after[pair.new]) if pair.new is not None else None
            change, parts = _compared(pair.names, left, right)
            if verify and left is not None:
                change = replace(change, before=digest(left))
            if verify and right is not None and parts:
                digests[change.name] = digest(right)
            table.append(change)
            tensors |= parts
        keys = identities(after)
        full = sum({keys[name]: after[name].nbytes for name in after}.values())
        facts: dict[str, Any] = {"full_bytes": full, "parameters_only": partial, "base": None, "result": None}
        if verify:
            before_all = {change.name: change.before for change in table if change.how != "added"}
            after_all = {
                change.name: digests.get(change.name, change.before) for change in table if change.how != "removed"
            }
            facts |= {"base": fingerprint(before_all), "result": fingerprint(after_all)}
        FORMAT.write(path, {**facts, "tensors": [asdict(change) for change in table]}, tensors)
        return PatchInfo(path=path, bytes=path.stat().st_size, table=tuple(table), **facts)


@dataclass(slots=True)
class _Pair:
    """One tensor with all its names, and its name in each checkpoint; None if that has no such tensor."""

    names: list[str]
    old: str | None
    new: str | None


def _paired(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[_Pair]:
    """Names that are tied on both sides form one pair, with names that are tied to them on one side only."""
    old, new = identities(before), identities(after)
    pairs: dict[Any, _Pair] = {}
    by_tensor: dict[Any, _Pair] = {}
    for name in (name for name in new if name in old):
        pair = pairs.setdefault((old[name], new[name]), _Pair([], name, name))
        pair.names.append(name)
        by_tensor.setdefault(("old", old[name]), pair)
        by_tensor.setdefault(("new", new[name]), pair)
    for name in (name for name in new if name not in old):
        by_tensor.setdefault(("new", new[name]), _Pair([], None, name)).names.append(name)
    for name in (name for name in old if name not in new):
        by_tensor.setdefault(("old", old[name]), _Pair([], name, None)).names.append(name)
    return list({id(pair): pair for pair in (*pairs.values(), *by_tensor.values())}.values())


def _parameters_only(before: Mapping[str, Tensor], after: Mapping[str, Tensor], pairs: list[_Pair]) -> bool:
    """Whether both sides hold floating-point parameters only; refuses a pair of which one lacks the other's buffers."""
    partial = [isinstance(side, SafetensorsFile) and side.parameters_only for side in (before, after)]
    if any(partial) and not all(partial):
        lone = next((pair for pair in pairs if pair.old is None or pair.new is None), None)
        if lone is not None:
            raise PatchError(
                f"{lone.names[0]!r} is in one of the two only: the state of a step holds floating-point parameters and "
                "nothing else. Compare two steps, or two whole checkpoints."
            )
    return all(partial)


def _compared(names: list[str], old: Tensor | None, new: Tensor | None) -> tuple[TensorChange, dict[str, Tensor]]:
    """How a tensor changes, and the tensors that the patch stores for it."""
    reference = old if old is not None else new
    assert reference is not None  # a pair has at least one side

    def change(how: How, changed: int, parts: dict[str, Tensor]) -> tuple[TensorChange, dict[str, Tensor]]:
        shape, entries = tuple(reference.shape), 0 if new is None else new.numel()
        nbytes = sum(part.nbytes for part in parts.values())
        info = TensorChange(tuple(names), how, dtype_name(reference), shape, entries, changed, nbytes)
        return info, {f"{part}/{names[0]}": tensor for part, tensor in parts.items()}

    if new is None:
        return change("removed", 0, {})
    if old is None:
        return change("added", new.numel(), {"whole": new})
    if old.dtype != new.dtype or old.shape != new.shape:
        return change("replaced", new.numel(), {"whole": new})
    new_bits, old_bits = bits(new).view(-1), bits(old).view(-1)
    pieces = list(zip(new_bits.split(PIECE), old_bits.split(PIECE), strict=True))
    changed = sum(int(torch.count_nonzero(a != b)) for a, b in pieces)
    if not changed:
        return change("same", 0, {})
    if changed * (1 + new.element_size()) + HEADER < new.nbytes:
        places = [(a != b).nonzero().view(-1) + number * PIECE for number, (a, b) in enumerate(pieces)]
        encoded = gaps.encode(torch.cat(places).numpy(), new.element_size())
        if encoded.nbytes + len(encoded) * new.element_size() + HEADER < new.nbytes:
            values = new_bits[torch.from_numpy(gaps.decode(encoded))].view(new.dtype)
            return change("sparse", changed, {"gaps": torch.from_numpy(encoded), "values": values})
    return change("dense", changed, {"whole": new})
