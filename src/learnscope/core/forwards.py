"""A training forward of the model, in numbers of what it was given."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

from torch import Tensor

from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.features.inputs import (
    MOST_HASHED,
    SHORT,
    equal_by_chance,
    number_moments,
    row_hashes,
    text_numbers,
    token_numbers,
)
from learnscope.tensor.features.small_inputs import is_small


@dataclass(slots=True, kw_only=True)
class ForwardCall:
    """One training forward of the model: numbers of its first input, as small tensors on its device."""

    name: str
    """Of that input: its keyword, its key, or its place."""
    form: str
    """Type and shape of one row: `float32[3, 32, 32]`."""
    tokens: bool
    numbers: Tensor
    """As `number_moments` or `token_numbers` of `learnscope.tensor.features.inputs` gives them."""
    hashes: Tensor | None = None
    """Of the first rows; None where rows are too short to be told apart."""
    comparable: Tensor | None = None
    rms: dict[str, Tensor] = field(default_factory=dict)
    """Of the output of the first layer with weights, `first`, and of the model's, `model`."""
    outputs: Tensor | None = None
    """Of the model's output, as `output_numbers` of `learnscope.tensor.features.outputs` gives them."""
    drifts: dict[str, Tensor] = field(default_factory=dict)
    """By batch norm layer, as `norm_drifts` gives them."""
    fixed: set[str] = field(default_factory=set)
    """The batch norm layers that normalise by their running statistics all the same."""
    disorder: Tensor | None = None
    """Of the gradient that a backward has brought to the output, as `gradient_disorder` gives it."""
    outside: int | None = None
    """Entries of trained tensors that the output comes from and that are not the model's; None if nobody looked."""
    lost_calls: dict[str, float] | None = None
    """By module that is called several times: the share of its calls that the output does not come from."""


def described(name: str, given: Tensor, padding: int | None, *, most: int = MOST_HASHED) -> ForwardCall:
    """An input in small tensors that hold nothing of it; its first rows with up to `most` entries are compared."""
    with nullcontext() if is_small(given) else plain_arithmetic(given.device):
        rows = given.detach()
        tokens = not rows.is_floating_point() and not rows.is_complex()
        if tokens and rows.ndim == 2 and len(rows) and rows.shape[1] >= SHORT:
            numbers, hashes, comparable = text_numbers(rows, padding, most)
            call = ForwardCall(name=name, form="text", tokens=True, numbers=numbers)
            call.hashes, call.comparable = hashes, comparable
            return call
        numbers = token_numbers(rows) if tokens else number_moments(rows.real if rows.is_complex() else rows)
        kind = str(given.dtype).removeprefix("torch.")
        shape = "text" if tokens and rows.ndim == 2 else f"{kind}{list(rows.shape[1:])}"
        call = ForwardCall(name=name, form=shape, tokens=tokens, numbers=numbers)
        if not tokens or rows[:1].numel() >= SHORT:
            call.hashes, comparable = row_hashes(rows, padding, most)
            call.comparable = comparable if tokens else comparable & ~equal_by_chance(rows)
        return call
