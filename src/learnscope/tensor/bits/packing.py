"""Integers of 2 to 8 bits packed into bytes without gaps."""

from __future__ import annotations

import torch
from torch import Tensor

_AT_ONCE = 1 << 20
"""Groups of eight numbers packed at a time, so that intermediate results take little memory."""


def packed_length(count: int, bits: int) -> int:
    """Bytes of `count` numbers of `bits` bits: only the last byte may have unused bits, which are 0."""
    return -(-count * bits // 8)


@torch.no_grad()
def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes from 0 to 2^bits - 1, in row-major order, as uint8 [packed_length].

    Number i takes the bits from i·bits on, where bit k is bit k % 8 of byte k // 8.

    >>> pack(torch.tensor([1, 2, 3], dtype=torch.uint8), 3).tolist()  # 001, 010, 011 from the right
    [209, 0]
    """
    _check_bits(bits)
    flat = codes.reshape(-1)
    if flat.numel() and not (int(flat.min()) >= 0 and int(flat.max()) < 2**bits):
        raise ValueError(f"codes from {int(flat.min())} to {int(flat.max())} do not fit {bits} bits")
    flat = flat.to(torch.uint8)
    return flat.clone() if bits == 8 else _regrouped(flat, bits, 8)[: packed_length(flat.numel(), bits)].clone()


@torch.no_grad()
def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes, uint8, that `pack` packed; refuses a length that does not match."""
    _check_bits(bits)
    if packed.dtype != torch.uint8 or packed.ndim != 1 or packed.numel() != packed_length(count, bits):
        raise ValueError(
            f"{tuple(packed.shape)} {packed.dtype} cannot hold {count} numbers of {bits} bits: "
            f"{packed_length(count, bits)} bytes are needed"
        )
    return packed.clone() if bits == 8 else _regrouped(packed, 8, bits)[:count].clone()


def _regrouped(numbers: Tensor, bits: int, new_bits: int) -> Tensor:
    """The same bits as numbers of `new_bits` bits: every `new_bits` numbers, as one int64, become `bits` numbers."""
    missing = -numbers.numel() % new_bits
    padded = torch.cat([numbers, numbers.new_zeros(missing)]) if missing else numbers
    old = padded.view(-1, new_bits)
    new = torch.empty(len(old), bits, dtype=torch.uint8, device=numbers.device)
    for rows, into in zip(old.split(_AT_ONCE), new.split(_AT_ONCE), strict=True):
        word = rows[:, 0].to(torch.int64)
        for place in range(1, new_bits):
            word |= rows[:, place].to(torch.int64) << (place * bits)
        for place in range(bits):
            into[:, place] = (word >> (place * new_bits)) & (2**new_bits - 1)
    return new.view(-1)


def _check_bits(bits: int) -> None:
    if bits not in range(2, 9):
        raise ValueError(f"bits={bits!r}: 2 to 8 are possible")
