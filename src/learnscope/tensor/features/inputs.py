"""Statistics of a model's inputs and of its first outputs, without a wait for the device."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from learnscope.tensor.features.small_inputs import (
    host_text,
    is_small,
    small_agreement,
    small_differing,
    small_hashes,
    small_moments,
    small_root_mean_square,
    small_token_numbers,
)
from learnscope.tensor.gradients.host import SQUARES, host_statistics
from learnscope.tensor.hashing import mixed

MOST = 2**22
"""Entries of a tensor that statistics are taken of: of more, those of examples that lie equally far apart."""
PIECE = 2**14
"""Entries that are brought into float64 at a time."""
MOST_HASHED = 2**19
"""Entries of the first examples of a batch that are compared by their content."""
NARROW, NEIGHBOURS, BY_CHANCE = 64, 8, 1e-6
"""Columns up to which rows may be equal by chance, how many neighbours a row is compared with, and how often two may be
equal before that means nothing."""
SHORT = 8
"""Whole numbers in a row below which rows are equal by chance."""


def some(tensor: Tensor) -> Tensor:
    """The tensor, or examples of it that lie equally far apart."""
    return tensor[:: max(1, -(-tensor.numel() // MOST))] if tensor.ndim else tensor


def number_moments(inputs: Tensor) -> Tensor:
    """[count, mean, Σ(x − mean)², largest |x|, not finite], in float64; the first four of finite numbers."""
    if is_small(inputs):
        return small_moments(inputs)
    values = some(inputs).double()
    finite = values.isfinite()
    count = finite.sum().double()
    clean = torch.where(finite, values, 0.0)
    mean = clean.sum() / count
    squares = torch.where(finite, values - mean, 0.0).square().sum()
    largest = clean.abs().amax() if values.numel() else mean
    return torch.stack([count, mean, squares, largest, values.numel() - count])


def token_numbers(tokens: Tensor) -> Tensor:
    """[largest, how many different], in float64."""
    if is_small(tokens) and not tokens.is_floating_point():
        return small_token_numbers(tokens)
    ordered = some(tokens).reshape(-1).long().sort().values
    if not len(ordered):
        return torch.full((2,), torch.nan, dtype=torch.float64)
    return torch.stack([ordered[-1], 1 + (ordered.diff() != 0).sum()]).double()


def text_numbers(tokens: Tensor, padding: int | None, most: int = MOST_HASHED) -> tuple[Tensor, Tensor, Tensor]:
    """Of tokens (N, D) with D ≥ `SHORT` `token_numbers` and `row_hashes`, comparable where rows are `long_enough`."""
    width = tokens.shape[1]
    if tokens.numel() <= MOST:
        found = host_text(tokens, padding, min(len(tokens), max(1, most // width)), SHORT)
        if found is not None:
            return found
    hashes, comparable = row_hashes(tokens, padding, most)
    return token_numbers(tokens), hashes, comparable & long_enough(tokens[: len(comparable)], padding)


def root_mean_square(outputs: Tensor) -> Tensor:
    """√(Σy²/n) in float64."""
    if is_small(outputs):
        return small_root_mean_square(outputs)
    values = some(outputs)
    if (read := host_statistics([values])) is not None:
        total, count = float(read[SQUARES, 0]), values.numel()
        return torch.from_numpy(np.array(math.sqrt(total / count) if count else math.nan))
    if not values.is_cpu or values.is_complex():
        return values.double().square().mean().sqrt()
    flat = values.reshape(-1)
    squares = [wide.dot(wide) for wide in (piece.double() for piece in flat.split(PIECE))]  # each stays in a cache
    return (torch.stack(squares).sum() / len(flat)).sqrt()


def norm_drifts(inputs: Tensor, running_mean: Tensor, running_var: Tensor, eps: float) -> Tensor:
    """Of a batch norm: medians over channels of |running mean − batch mean| / batch std, |ln(running / batch var)|."""
    values = some(inputs).double()
    over = [0, *range(2, values.ndim)]
    var, mean = torch.var_mean(values, over, correction=0)
    var = var + eps
    shift = (running_mean.double() - mean).abs() / var.sqrt()
    return torch.stack([shift.quantile(0.5), ((running_var.double() + eps) / var).log().abs().quantile(0.5)])


def row_hashes(inputs: Tensor, padding: int | None = None, most: int = MOST_HASHED) -> tuple[Tensor, Tensor]:
    """A hash of 64 bits of the content of each of the first rows, and whether the row can be compared.

    Rows of equal bits have equal hashes, on any device and in any batch; the places of padding tokens do not count.
    Empty and constant rows cannot be compared: all of them would be alike.
    """
    width = max(1, inputs[:1].numel())
    flat = inputs[: max(1, most // width)].reshape(-1, width) if inputs.numel() else inputs.new_zeros(len(inputs), 1)
    padding = padding if inputs.dtype in (torch.int64, torch.int32) else None
    if padding is None and is_small(flat):
        return small_hashes(flat, _salt(width, flat.device))
    # in pieces that stay in a cache
    pieces = [_hashed(piece, padding) for piece in flat.split(max(1, MOST_HASHED // width))]
    hashes, comparable = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return hashes, comparable


def equal_by_chance(rows: Tensor) -> Tensor:
    """Whether two different examples may well be equal: few columns, of few different values each.

    The product over the columns of how often two rows agree there, as if columns were independent, above `BY_CHANCE`.
    Rows of bits, or of a few categories, are equal without being the same example. That all rows of a batch are the
    same is no chance, and says nothing of how many values a column has.
    """
    flat = rows.reshape(len(rows), -1) if rows.numel() else rows.new_zeros(len(rows), 0)
    if not 0 < flat.shape[1] <= NARROW or len(flat) <= NEIGHBOURS:
        return torch.zeros((), dtype=torch.bool, device=rows.device)
    if is_small(flat):
        often, always = small_agreement(flat, NEIGHBOURS)
        return torch.tensor(bool(often.prod() > BY_CHANCE) and not always, device="cpu")
    agree = torch.stack([flat == flat.roll(shift, 0) for shift in range(1, NEIGHBOURS + 1)])
    return (agree.double().mean((0, 1)).prod() > BY_CHANCE) & ~agree.all()


def long_enough(tokens: Tensor, padding: int | None) -> Tensor:
    """Whether rows (N, D) of tokens hold `SHORT` of them that are no padding: shorter ones are equal by chance.

    Where the padding is not known, it is taken to be what a row begins or ends with.
    """
    if padding is not None:
        return (tokens != padding).sum(1) >= SHORT
    if is_small(tokens):
        return torch.from_numpy(small_differing(tokens) >= SHORT)
    at_start, at_end = ((tokens != tokens[:, end : end + 1 or None]).sum(1) for end in (0, -1))
    return torch.minimum(at_start, at_end) >= SHORT


def _hashed(rows: Tensor, padding: int | None) -> tuple[Tensor, Tensor]:
    if padding is None:
        words = _words(rows)
        entries = words.shape[1] // rows.shape[1]  # two words for a complex number
        differs = (words != words[:, :entries].repeat(1, rows.shape[1])).any(1)
        return mixed(words ^ _salt(words.shape[1], words.device)).sum(1), differs
    kept = rows != padding
    hashes = torch.where(kept, mixed(rows.long() ^ mixed(kept.cumsum(1))), 0).sum(1)
    lowest = torch.where(kept, rows, torch.iinfo(rows.dtype).max).amin(1)
    highest = torch.where(kept, rows, torch.iinfo(rows.dtype).min).amax(1)
    return hashes, lowest < highest


def _words(rows: Tensor) -> Tensor:
    """The bits of the entries as whole numbers, one or more for each."""
    rows = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
    if rows.dtype is torch.bool:
        return rows.long()
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(rows.element_size(), torch.int64)
    return rows.contiguous().view(whole).long()


@cache
def _salt(width: int, device: torch.device) -> Tensor:
    """A number for each place, so that equal entries in other places give another hash."""
    return mixed(torch.arange(width, device=device))
