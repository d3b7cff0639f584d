"""A gradient reduced to a few numbers that keep its direction."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic
from learnscope.tensor.rows import pieces

PERIOD = 65_537
"""Length of the inner sign pattern: a prime, so that every bucket gets every sign."""

OUTER = 65_536
"""Length of the outer sign pattern: together the signs repeat after 4.3e9 entries."""


def sketch(grad: Tensor, size: int = 1024, seed: int = 0) -> Tensor:
    """A linear count-sketch, `[size]` float64 on the gradient's device.

    Entry i (in the order of the indices) is added to bucket i mod size with the sign
    s[i mod P] · t[i // P], P = 65537. For two gradients x, y of one shape the expected inner product of their
    sketches is x·y, with an error of about ‖x‖‖y‖/√size. The signs come from a generator of their own.

    >>> x, y = torch.ones(5), torch.arange(5.0)
    >>> torch.equal(sketch(x + 2 * y), sketch(x) + 2 * sketch(y))
    True
    """
    if size < 1 or size % PERIOD == 0:
        raise ValueError(f"size is {size}: it must be positive and no multiple of {PERIOD}")
    if not grad.is_floating_point():
        raise TypeError(f"gradient is {grad.dtype}: a sketch needs floats")
    with plain_arithmetic(grad.device):
        grad = plain(grad)
        if grad.layout is torch.sparse_coo:
            return _sparse(grad.coalesce(), size, seed)
        return _dense(grad, size, seed)


@functools.lru_cache(maxsize=16)
def _signs(seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    bits = torch.randint(0, 2, (PERIOD + OUTER,), generator=generator, dtype=torch.int8, device="cpu")
    signs = bits.mul_(2).sub_(1).to(device, torch.float32)
    return signs[:PERIOD], signs[PERIOD:]


def _blocks(grad: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The entries in order as vectors that each lie within one period, with the index of the first entry."""
    index = 0
    parts = iter(((grad,),)) if grad.is_contiguous() else pieces((grad,))
    for (part,) in parts:
        vector = part.reshape(-1)
        start = 0
        while start < vector.numel():
            block = vector[start : start + PERIOD - index % PERIOD]
            yield index, block
            start += block.numel()
            index += block.numel()


def _dense(grad: Tensor, size: int, seed: int) -> Tensor:
    inner, outer = _signs(seed, grad.device)
    signs = [1.0 if sign > 0 else -1.0 for sign in outer[: grad.numel() // PERIOD + 1].tolist()]
    rows = (min(PERIOD, grad.numel()) + size - 1) // size + 1
    work = torch.zeros(rows * size, dtype=arithmetic_dtype(grad), device=grad.device)
    total = torch.zeros(size, dtype=torch.float64, device=grad.device)
    for index, block in _blocks(grad):
        first = index % PERIOD
        head = index % size
        end = head + block.numel()
        work[:head].zero_()
        work[end:].zero_()
        torch.mul(block, inner[first : first + block.numel()], out=work[head:end])
        total.add_(work.view(rows, size).sum(0), alpha=signs[index // PERIOD % OUTER])
    return total


def _sparse(grad: Tensor, size: int, seed: int) -> Tensor:
    inner, outer = _signs(seed, grad.device)
    leading, values = grad.shape[: grad.sparse_dim()], grad.values()
    row = torch.zeros(values.shape[0], dtype=torch.int64, device=grad.device)
    for length, coordinate in zip(leading, grad.indices(), strict=True):
        row = row * length + coordinate
    width = values[0].numel() if len(values) else 0
    total = torch.zeros(size, dtype=torch.float64, device=grad.device)
    step = max(1, (1 << 18) // max(1, width))
    column = torch.arange(width, dtype=torch.int64, device=grad.device)
    for start in range(0, len(values), step):
        index = (row[start : start + step, None] * width + column).view(-1)
        sign = inner[index % PERIOD] * outer[index // PERIOD % OUTER]
        total.index_add_(0, index % size, values[start : start + step].reshape(-1).double() * sign)
    return total
