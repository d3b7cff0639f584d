"""How tensors become rows: large ones are viewed in place, small ones and tails are packed.

Every pass works on matrices of `WIDTH` columns and reduces each row. Rows are short enough for float32 sums that
are accurate to a few parts in 10⁷, and few enough that adding them up in float64 takes hardly any time.
"""

import functools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WIDTH = 512
"""Entries in a row. Equal numbers are the worst case, as each addition rounds the same way: 512 of them in
8 vector lanes are 64 additions, off by at most 64/4 · 2⁻²⁴ ≈ 1e-6 of the sum; mixed numbers are far better."""

PACK_BELOW = 32_768
"""Tensors with fewer entries are copied into shared rows: a call per tensor would take longer than the copy."""

CALL = 1 << 24
"""Entries in one batch: its partial sums are still in the cache when they are added up."""

PIECE = 1 << 20
"""Entries copied at a time when a tensor cannot be viewed as rows in place."""

CACHED = 1 << 17
"""Entries that are read several times on a CPU while they are in the cache of one core."""

SMALLEST_SAFE = 2.0**-93
"""A float32 sum of squares of a row below this may have lost terms to underflow: 512 · 2⁻¹²⁶ is 1.2e-7 of it."""

Group = tuple[Tensor, ...]
"""Tensors of one shape whose entries belong together: (new, old), or one gradient alone."""

Kind = tuple[int, torch.dtype, torch.device]
"""Entries, dtype and device of a tensor: all that its place in a pack depends on."""

_local = threading.local()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows that are reduced together, one matrix for each tensor of a group."""

    rows: Group
    owner: int | Tensor
    """The position of the group that all rows belong to, or one position per row."""
    bytes_owned: int = 0
    """Memory that the batch keeps alive besides the caller's own tensors."""


def flat(group: Group) -> Group | None:
    """All tensors of a group as vectors without a copy, in the order of their memory; None if that is impossible."""
    if not all(tensor.is_contiguous() for tensor in group):
        first = group[0]
        order = sorted(range(first.ndim), key=first.stride, reverse=True)
        group = tuple(tensor.permute(order) for tensor in group)
        if not all(tensor.is_contiguous() for tensor in group):
            return None
    return tuple(tensor.view(-1) for tensor in group)


def pieces(group: Group, limit: int = PIECE) -> Iterator[Group]:
    """Cut a group along its leading dimensions until no part has more than `limit` entries."""
    first = group[0]
    if first.numel() <= limit:
        yield group
        return
    length = first.shape[0]
    step = max(1, limit // (first.numel() // length))
    for start in range(0, length, step):
        size = min(step, length - start)
        part = tuple(tensor.narrow(0, start, size) for tensor in group)
        yield from pieces(tuple(tensor.squeeze(0) for tensor in part) if size == 1 else part, limit)


def batches(groups: Sequence[Group], pack_below: int = PACK_BELOW) -> Iterator[Batch]:
    """Every entry of every group, in batches of rows. Packed rows are padded with zeros."""
    packs: dict[tuple[object, ...], list[tuple[int, Group]]] = {}
    filled: dict[tuple[object, ...], int] = {}
    for owner, group in enumerate(groups):
        for part, owned in _parts(group):
            length = part[0].numel()
            body = length // WIDTH * WIDTH if length >= pack_below else 0
            for start in range(0, body, CALL):
                rows = tuple(tensor[start : min(start + CALL, body)].view(-1, WIDTH) for tensor in part)
                yield Batch(rows=rows, owner=owner, bytes_owned=owned)
            if body < length:
                key = part[0].device, *(tensor.dtype for tensor in part)
                packs.setdefault(key, []).append((owner, tuple(tensor[body:] for tensor in part) if body else part))
                filled[key] = filled.get(key, 0) + _row_count(length - body)
                if filled[key] * WIDTH >= PIECE:
                    del filled[key]
                    yield _packed(packs.pop(key))
    for pack in packs.values():
        yield _packed(pack)


def _parts(group: Group) -> Iterator[tuple[Group, int]]:
    """A group as vectors on the device of its first tensor, with the bytes that were copied for it."""
    device = group[0].device
    vectors = flat(group) if all(tensor.device == device for tensor in group) else None
    if vectors is not None:
        yield vectors, 0
        return
    for part in pieces(group):
        copies = tuple(tensor.reshape(-1).to(device) for tensor in part)
        yield copies, sum(copy.nbytes for copy in copies)


def _packed(members: Sequence[tuple[int, Group]]) -> Batch:
    """Vectors of the same dtypes as padded rows, each starting a new row."""
    lengths = [_row_count(group[0].numel()) for _, group in members]
    owner = torch.repeat_interleave(_integers([owner for owner, _ in members]), _integers(lengths))
    rows = []
    for vectors in zip(*(group for _, group in members), strict=True):
        zeros = torch.zeros(WIDTH, dtype=vectors[0].dtype, device=vectors[0].device)
        parts = [part for vector in vectors for part in (vector, zeros[: -vector.numel() % WIDTH])]
        rows.append(torch.cat(parts).view(-1, WIDTH))
    return Batch(rows=tuple(rows), owner=owner, bytes_owned=sum(matrix.nbytes for matrix in rows))


def _row_count(entries: int) -> int:
    return math.ceil(entries / WIDTH)


def _integers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")


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
    starts: NDArray[np.int64]
    """The first row of each member."""
    padding: NDArray[np.float64]
    """The zeros that fill the last row of each."""

    def fill(self, tensors: Sequence[Tensor], use: str = "pack") -> Batch:
        """The matrix of these tensors, in the memory for this use."""
        buffer = workspace(use, len(self.owner), self.template[0].dtype, self.template[0].device)
        rows = self.fill_into(buffer, tensors)
        return Batch(rows=(rows,), owner=self.owner, bytes_owned=rows.nbytes)

    def fill_into(self, matrix: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Write these tensors into a matrix of as many rows."""
        parts = self.template.copy()
        parts[::2] = [tensors[member].reshape(-1) for member in self.members]
        return torch.cat(parts, out=matrix.view(-1)).view(-1, WIDTH)


@dataclass(frozen=True)
class Plan:
    """The packs of a list of tensors, the tensors too large for a pack, and the padding of each tensor."""

    packs: list[Pack]
    large: list[int]
    padding: list[int]


@functools.lru_cache(maxsize=64)
def plan(kinds: tuple[Kind, ...], pack_below: int, limit: int = PIECE) -> Plan:
    """Sort tensors into packs of one dtype and device with at most about `limit` entries."""
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
            if sum(kinds[member][0] + padding[member] for member in members) >= limit:
                closed.append(open_packs.pop((dtype, device)))
    packs = []
    for members in [*closed, *open_packs.values()]:
        _, dtype, device = kinds[members[0]]
        zeros = torch.zeros(WIDTH, dtype=dtype, device=device)
        template = [part for member in members for part in (zeros, zeros[: padding[member]])]
        owner = [member for member in members for _ in range(_row_count(kinds[member][0]))]
        rows = [_row_count(kinds[member][0]) for member in members]
        starts = np.cumsum([0, *rows[:-1]], dtype=np.int64)
        gaps = np.array([padding[member] for member in members], np.float64)
        packs.append(Pack(members, template, torch.tensor(owner, dtype=torch.int64, device=device), starts, gaps))
    return Plan(packs, large, padding)
