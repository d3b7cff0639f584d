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
    if bits == 8:
        return flat.clone()
    eights = _padded(flat, 8).view(-1, 8)
    packed = torch.empty(len(eights), bits, dtype=torch.uint8, device=flat.device)
    for start in range(0, len(eights), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        _spread(_joined(eights[rows], bits), packed[rows], 8)
    return packed.view(-1)[: packed_length(flat.numel(), bits)].clone()


@torch.no_grad()
def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes, uint8, that `pack` packed; refuses a length that does not match."""
    _check_bits(bits)
    if packed.dtype != torch.uint8 or packed.ndim != 1 or packed.numel() != packed_length(count, bits):
        raise ValueError(
            f"{tuple(packed.shape)} {packed.dtype} cannot hold {count} numbers of {bits} bits: "
            f"{packed_length(count, bits)} bytes are needed"
        )
    if bits == 8:
        return packed.clone()
    words = _padded(packed, bits).view(-1, bits)
    codes = torch.empty(len(words), 8, dtype=torch.uint8, device=packed.device)
    for start in range(0, len(words), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        _spread(_joined(words[rows], 8), codes[rows], bits)
    return codes.view(-1)[:count].clone()


def _joined(numbers: Tensor, bits: int) -> Tensor:
    """Each row of numbers as one int64, the first number lowest: eight of up to 7 bits, or up to 7 bytes."""
    word = numbers[:, 0].to(torch.int64)
    for place in range(1, numbers.shape[1]):
        word |= numbers[:, place].to(torch.int64) << (place * bits)
    return word


def _spread(words: Tensor, into: Tensor, bits: int) -> None:
    """The inverse of `_joined`, for as many numbers as `into` has columns."""
    for place in range(into.shape[1]):
        into[:, place] = (words >> (place * bits)) & (2**bits - 1)


def _padded(flat: Tensor, multiple: int) -> Tensor:
    missing = -flat.numel() % multiple
    return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat


def _check_bits(bits: int) -> None:
    if bits not in range(2, 9):
        raise ValueError(f"bits={bits!r}: 2 to 8 are possible")
