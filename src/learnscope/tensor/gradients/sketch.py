"""A gradient reduced to a few numbers that keep its direction."""

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic
from learnscope.tensor.rows import pieces
from learnscope.tensor.segments import Segments

SIZE = 1021
"""Numbers of a sketch. A prime: in a matrix whose rows are as long as a multiple of it, each column would fall into one
bucket, and rows are often as long as a power of two."""

INTERVAL = 1.959964
"""Standard errors on each side of a 95 % interval."""

PERIOD = 65_537
"""Length of the inner sign pattern: a prime, so that every bucket gets every sign."""

OUTER = 65_536
"""Length of the outer sign pattern: together the signs repeat after 4.3e9 entries."""


def sketch(grad: Tensor, size: int = SIZE, seed: int = 0) -> Tensor:
    """A linear count-sketch, `[size]` float64 on the gradient's device.

    Entry i (in the order of the indices) is added to bucket i mod size with the sign
    s[i mod P] · t[i // P], P = 65537. For two gradients x, y of one shape the expected inner product of their
    sketches is x·y, with an error of about ‖x‖‖y‖/√size; up to `size` entries it is exactly that. The signs come from
    a generator of their own.

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


def sketched_cosines(x: Tensor, y: Tensor, entries: Sequence[int], segments: Segments) -> tuple[Tensor, Tensor]:
    """The cosine of two gradients over each scope's tensors, from sketches [tensors, size], and its error.

    `entries` are those of each tensor. The error is half of a 95 % interval over the choice of signs. Buckets have
    signs of their own, so that the variance is at most the sum over buckets of r², with r the bucket's part of the
    cosine to first order: r = x y/√(X Y) − cos/2 (x²/X + y²/Y), X = Σx², Y = Σy². That is (1 − cos²)²/size for dense
    gradients, and more where a few entries make up most of them, though these are then rarely in one bucket. Tensors
    whose entries all have buckets of their own have no error.
    """
    xx, xy, yy = x * x, x * y, y * y
    inner, new, old = segments.sum(torch.stack([xy.sum(1), xx.sum(1), yy.sum(1)], 1)).unbind(1)
    root = new.sqrt() * old.sqrt()
    cosine = inner / root
    shared = x.new_tensor([float(count > x.shape[1]) for count in entries])
    fourths = torch.stack([(a * b).sum(1) for a, b in ((xy, xy), (xx, xx), (yy, yy), (xx, xy), (xy, yy))], 1)
    both, of_x, of_y, more_x, more_y = segments.sum(shared[:, None] * fourths).unbind(1)
    variance = (
        (1 + cosine.square() / 2) * both / root.square()
        + cosine.square() / 4 * (of_x / new.square() + of_y / old.square())
        - cosine / root * (more_x / new + more_y / old)
    )
    return cosine, INTERVAL * variance.clamp(min=0).sqrt()


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
