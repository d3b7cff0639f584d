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
    if device.type != "cpu" or rows > 2 * PIECE // WIDTH:
        return torch.empty(rows, WIDTH, dtype=dtype, device=device)
    buffers: dict[tuple[str, torch.dtype], Tensor] = _local.__dict__.setdefault("buffers", {})
    buffer = buffers.get((use, dtype))
    if buffer is None or len(buffer) < rows:
        buffer = buffers[use, dtype] = torch.empty(rows, WIDTH, dtype=dtype, device=device)
    return buffer[:rows]


@dataclass(frozen=True)
class Pack:
    """The tensors in one matrix, the vectors to concatenate, and the owner of each row."""

    members: list[int]
    template: list[Tensor]
    """A placeholder for each member, followed by the zeros that fill its last row."""
    owner: Tensor

    def fill(self, tensors: Sequence[Tensor]) -> Batch:
        """The matrix of these tensors."""
        parts = self.template.copy()
        parts[::2] = [tensors[member].reshape(-1) for member in self.members]
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
    for index, (entries, dtype, device) in enumerate(kinds):
        if entries >= pack_below:
            large.append(index)
        elif entries:
            padding[index] = -entries % WIDTH
            members = open_packs.setdefault((dtype, device), [])
            members.append(index)
            if sum(kinds[member][0] + padding[member] for member in members) >= PIECE:
                closed.append(open_packs.pop((dtype, device)))
    packs = [_pack(members, kinds) for members in [*closed, *open_packs.values()]]
    return Plan(packs, large, padding)


def _pack(members: list[int], kinds: tuple[Kind, ...]) -> Pack:
    _, dtype, device = kinds[members[0]]
    zeros = torch.zeros(WIDTH, dtype=dtype, device=device)
    template = [part for member in members for part in (zeros, zeros[: -kinds[member][0] % WIDTH])]
    owner = [member for member in members for _ in range(math.ceil(kinds[member][0] / WIDTH))]
    return Pack(members, template, torch.tensor(owner, dtype=torch.int64, device=device))
