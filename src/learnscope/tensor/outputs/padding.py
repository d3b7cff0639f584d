"""Padding among the tokens that a model is given, also where nothing says which token it is."""

from __future__ import annotations

from torch import Tensor

LEAST_RUN = 2
"""Places that a run of padding has: a single token at the end of a row may be an end mark."""


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
