"""Places of sequences: those that are padding, and what a model says at the first, where it has seen one input. All of
it without a wait for the device.

A model that does not see what comes later gives equal answers there to equal inputs. So no such model is right more
often than the most frequent target of each first token allows, nor nearer to the targets than what the first number
leaves open.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from learnscope import native
from learnscope.tensor.host import plain_array

MOST_ROWS = 256
"""Sequences of a batch that are compared with each other."""
FEWEST_ROWS = 16
"""Sequences below which nothing is said about numbers."""
LEAST_RUN = 2
"""Places that a run of padding has: a single token at the end of a row may be an end mark."""


def token_first_places(tokens: Tensor, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """[rows, right, bound]: of sequences whose first token others have too, how many are predicted right at the first
    place, and how many the best function of that token would get right.

    `tokens` are (B, T); `outputs` (B·T, K) or (B·(T − 1), K) in the order of the sequences, or (B, K, T).
    """
    batch, length = tokens.shape
    rows = targets.numel()
    if outputs.ndim == 2 and batch and rows in (batch * length, batch * (length - 1)) and len(outputs) == rows:
        given = outputs[:: rows // batch]
    elif outputs.ndim == 3 and outputs.shape[0] == batch and targets.shape == (batch, outputs.shape[2]):
        given = outputs[:, :, 0]
    else:
        return None
    held = plain_array(tokens, torch.int64), plain_array(targets, torch.int64)
    logits = plain_array(outputs, torch.float32, torch.float64) if outputs.ndim == 2 else None
    if held[0] is not None and held[1] is not None and logits is not None and native.kernels is not None:
        out = np.empty(3)
        native.kernels.first_places(held[0], held[1], logits, batch, MOST_ROWS, out)
        return torch.from_numpy(out)
    first, wanted = tokens[:MOST_ROWS, 0], targets.reshape(batch, -1)[:MOST_ROWS, 0]
    same = first[:, None] == first[None]
    size = same.sum(1)
    alike = (same & (wanted[:, None] == wanted[None])).sum(1)
    most = torch.where(same, alike[None], 0).amax(1)
    shared = size > 1
    right = shared & (given[:MOST_ROWS].argmax(1) == wanted)
    return torch.stack([shared.sum().double(), right.sum().double(), torch.where(shared, most / size, 0.0).sum()])


def number_first_places(inputs: Tensor, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """[equal, shifted, error, floor] of sequences (B, T, C) of numbers, whose targets and outputs have the same shape.

    Shares of the targets that equal the input of their own place, and of the next; then of the first place, in units
    of the variance of its targets: the mean squared error, and what the first input leaves open. That is told from how
    far each target is off a line between those of the sequences with the nearest first inputs, below and above it,
    which is nothing for a smooth function. NaN where C is not 1, or there are few sequences.
    """
    if inputs.ndim != 3 or not inputs.shape == outputs.shape == targets.shape or inputs.shape[1] < 2:
        return None
    equal = (inputs == targets).double().mean()
    shifted = (inputs[:, 1:] == targets[:, :-1]).double().mean()
    unknown = equal.new_full((2,), torch.nan)
    if inputs.shape[2] != 1 or len(inputs) < FEWEST_ROWS:
        return torch.cat([torch.stack([equal, shifted]), unknown])
    x, given, wanted = (each[:MOST_ROWS, 0, 0].double() for each in (inputs, outputs, targets))
    variance, error = wanted.var(correction=0), (given - wanted).square().mean()
    order = x.argsort()
    x, wanted = x[order], wanted[order]
    width = (x[2:] - x[:-2]).clamp(min=1e-300)
    weight = (x[1:-1] - x[:-2]) / width
    rest = wanted[1:-1] - (1 - weight) * wanted[:-2] - weight * wanted[2:]
    floor = (rest.square() / (1 + (1 - weight).square() + weight.square())).mean()
    return torch.stack([equal, shifted, error / variance, floor / variance])


def padded_targets(tokens: Tensor, wanted: Tensor, counted: Tensor, padding: int | None) -> Tensor:
    """Where counted targets are padding after padding: (B, places), without a wait for the device.

    Of a padding token that is known: targets and inputs that are it. Else of the token that fills the ends (or the
    beginnings) of at least half of the rows, by runs of different lengths, and stands nowhere else: places of these
    runs, if their targets are all the same.
    """
    places = wanted.shape[1]
    if padding is not None or not wanted.numel():
        return counted & (wanted == padding) & (tokens[:, :places] == padding)
    at_end = _runs(tokens.flip(1)).flip(1)
    found = at_end | (_runs(tokens) & ~at_end.any())
    chosen = found[:, :places] & counted
    largest = wanted.where(chosen, wanted.amin()).amax()
    return chosen & (~chosen | (wanted == largest)).all()


def _runs(tokens: Tensor) -> Tensor:
    """The places of the runs that rows begin with, of one token that is in no other place; else none."""
    if not tokens.numel():
        return tokens.bool()
    token = tokens[:, 0].mode().values
    same = tokens == token
    run = same.long().cumprod(1).bool()
    length = run.sum(1)
    often = 2 * (length >= LEAST_RUN).sum() >= len(tokens)
    sound = often & ~(same & ~run).any() & (length.amax() > length.amin()) & ~same.all()
    return run & sound
