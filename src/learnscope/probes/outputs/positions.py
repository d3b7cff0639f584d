"""Means over positions, with the reason where there is none."""

from __future__ import annotations

from torch import Tensor

NO_POSITION = "no position has a target"


def mean_of_positions(what: str, values: Tensor, example: Tensor) -> float | str:
    """The mean over positions in float64, or why there is none; `example` is the one that each belongs to.

    >>> import torch
    >>> mean_of_positions("the loss", torch.tensor([1.0, 3.0]), torch.tensor([0, 1]))
    2.0
    """
    if not len(values):
        return NO_POSITION
    return why_not_finite(what, values, example) or float(values.double().mean())


def why_not_finite(what: str, values: Tensor, example: Tensor) -> str | None:
    """The status of their mean: how many positions' numbers are not finite, and where the first is; None if all are.

    >>> import torch
    >>> why_not_finite("the loss", torch.tensor([1.0, torch.nan, torch.inf]), torch.tensor([0, 4, 4]))
    'nan: the loss of 2 of 3 positions is not finite, first that of example 4'
    """
    bad = (~values.isfinite()).nonzero().flatten()
    if not len(bad):
        return None
    mean, first = float(values.double().mean()), int(example[bad[0]])
    return f"{mean}: {what} of {len(bad)} of {len(values)} positions is not finite, first that of example {first}"
