"""Many small tensors of known sizes as few matrices of rows, planned once and filled every step."""

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.rows import PIECE, WIDTH, Batch

Kind = tuple[int, torch.dtype, torch.device]
"""Entries, dtype and device of a tensor: all that its place in a pack depends on."""

_local = threading.local()


def workspace(use: str, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows to write into, in the same memory at every call on a CPU: touching fresh pages takes longer than the
    arithmetic of a small model's step. One buffer per use and thread, of a few MiB at most.
    """
    key = use, dtype
    buffers: dict[tuple[str, torch.dtype], Tensor] = _local.__dict__.setdefault("buffers", {})
    held = buffers.get(key)
    if device.type != "cpu" or rows > 2 * PIECE // WIDTH:
        return torch.empty(rows, WIDTH, dtype=dtype, device=device)
    if held is None or len(held) < rows:
        held = buffers[key] = torch.empty(rows, WIDTH, dtype=dtype, device=device)
    return held[:rows]


@dataclass(frozen=True)
class Pack:
    """The tensors in one matrix, where their vectors go in the list to concatenate, and the owner of each row."""

    members: list[int]
    places: list[int]
    template: list[Tensor]
    owner: Tensor

    def fill(self, tensors: Sequence[Tensor]) -> Batch:
        """The matrix of these tensors; the template already holds the zeros that pad the rows."""
        parts = self.template.copy()
        for member, place in zip(self.members, self.places, strict=True):
            parts[place] = tensors[member].reshape(-1)
        buffer = workspace("pack", len(self.owner), self.template[0].dtype, self.template[0].device)
        rows = torch.cat(parts, out=buffer.view(-1)).view(-1, WIDTH)
        return Batch(rows=(rows,), owner=self.owner, bytes_owned=rows.nbytes)


@dataclass(frozen=True)
class Plan:
    """The packs of a list of tensors, the tensors too large for a pack, and the padding of each tensor."""

    packs: list[Pack]
    large: list[int]
    padding: list[int]


@functools.lru_cache(maxsize=64)
def plan(kinds: tuple[Kind, ...], pack_below: int) -> Plan:
    """Sort tensors into packs of one dtype and device with at most about `PIECE` entries."""
    large, padding = [], [0] * len(kinds)
    open_packs: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    closed: list[list[int]] = []
    filled: dict[tuple[torch.dtype, torch.device], int] = {}
    for index, (entries, dtype, device) in enumerate(kinds):
        if entries >= pack_below:
            large.append(index)
        elif entries:
            padding[index] = -entries % WIDTH
            key = dtype, device
            open_packs.setdefault(key, []).append(index)
            filled[key] = filled.get(key, 0) + entries + padding[index]
            if filled[key] >= PIECE:
                closed.append(open_packs.pop(key))
                del filled[key]
    packs = [_pack(members, kinds) for members in [*closed, *open_packs.values()]]
    return Plan(packs, large, padding)


def _pack(members: list[int], kinds: tuple[Kind, ...]) -> Pack:
    _, dtype, device = kinds[members[0]]
    zeros = torch.zeros(WIDTH, dtype=dtype, device=device)
    places: list[int] = []
    template: list[Tensor] = []
    for member in members:
        places.append(len(template))
        template.append(zeros)
        if gap := -kinds[member][0] % WIDTH:
            template.append(zeros[:gap])
    rows = [math.ceil(kinds[member][0] / WIDTH) for member in members]
    owner = [member for member, count in zip(members, rows, strict=True) for _ in range(count)]
    return Pack(members, places, template, torch.tensor(owner, dtype=torch.int64, device=device))
