"""What a sequence model says at the first place, against what it can know there; and padding that nobody names."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from learnscope.tensor.outputs.places import number_first_places, padded_targets, token_first_places


def drawn(*shape: int, high: int = 4) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(3))


def test_no_function_of_the_first_token_is_above_the_bound() -> None:
    tokens, targets = drawn(9, 5, high=3), drawn(9, 5, high=3).flip(0)
    best = 0.0
    for answers in product(range(3), repeat=3):  # every function of the first token
        said = torch.tensor(answers)[tokens]
        rows, right, bound = token_first_places(tokens, torch.eye(3)[said].flatten(0, 1), targets.flatten()).tolist()  # type: ignore[union-attr]
        best = max(best, right)
    assert rows == sum((tokens[:, 0] == token).sum() > 1 for token in tokens[:, 0])
    assert best == pytest.approx(bound)


@pytest.mark.parametrize("form", ["flat", "shifted", "columns"])
def test_a_model_that_knows_the_targets(form: str) -> None:
    tokens = drawn(16, 7)
    targets = tokens[:, 1:] if form == "shifted" else tokens.roll(-1, 1)
    known = torch.eye(4)[targets]
    given = known.transpose(1, 2) if form == "columns" else known.flatten(0, 1)
    found = token_first_places(tokens, given, targets if form == "columns" else targets.flatten())
    rows, right, bound = found.tolist()  # type: ignore[union-attr]
    assert rows == right > bound


def test_shapes_that_do_not_belong_together() -> None:
    assert token_first_places(drawn(4, 6), torch.zeros(4, 3), drawn(4)) is None  # one target a sequence
    assert token_first_places(drawn(0, 6), torch.zeros(0, 3), drawn(0)) is None
    series = torch.zeros(20, 6, 1)
    assert number_first_places(series, torch.zeros(20, 1), torch.zeros(20, 1)) is None
    assert number_first_places(series[:, 0], series[:, 0], series[:, 0]) is None
    few = number_first_places(series[:3], series[:3], series[:3])
    assert few is not None
    assert few[:2].tolist() == [1, 1]
    assert few[2:].isnan().all()


def test_what_a_first_value_leaves_open() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 9, 1, generator=generator)
    inputs, targets = noise[:, :-1], noise[:, 1:]
    equal, shifted, error, floor = number_first_places(inputs, 0 * targets, targets).tolist()  # type: ignore[union-attr]
    assert (equal, shifted) == (0, 1)
    assert error == pytest.approx(1, abs=0.1)
    assert floor == pytest.approx(1, abs=0.25)
    walk = noise.cumsum(1)  # half of the variance of the second value is that of the first
    floor = number_first_places(walk[:, :-1], walk[:, 1:], walk[:, 1:]).tolist()[3]  # type: ignore[union-attr]
    assert floor == pytest.approx(0.5, abs=0.15)


def test_a_series_that_its_first_value_decides() -> None:
    x = torch.rand(32, 1, generator=torch.Generator().manual_seed(0)).double()
    for _ in range(5):
        x = torch.cat([x, 4 * x[:, -1:] * (1 - x[:, -1:])], 1)
    series = x[..., None]
    assert number_first_places(series[:, :-1], series[:, 1:], series[:, 1:])[3] < 0.02  # type: ignore[index]


def test_equal_first_values_and_constant_targets() -> None:
    same = torch.zeros(20, 4, 1)
    assert not math.isfinite(number_first_places(same, same, same)[3])  # type: ignore[index]


def padded(lengths: list[int], width: int = 8, *, left: bool = False, token: int = 0) -> Tensor:
    rows = 1 + drawn(len(lengths), width)
    keep = torch.arange(width) < torch.tensor(lengths)[:, None]
    return rows.where(keep.flip(1) if left else keep, token)


@pytest.mark.parametrize(("left", "token"), [(False, 0), (True, 0), (False, 9)])
def test_padding_that_nobody_names(left: bool, token: int) -> None:
    tokens = padded([3, 5, 2, 8], left=left, token=token)
    tags = (tokens != token).long() * (1 + tokens % 2)
    found = padded_targets(tokens, tags, torch.ones_like(tags, dtype=torch.bool), None)
    assert torch.equal(found, tokens == token)


@pytest.mark.parametrize(
    "tokens",
    [
        padded([8, 8, 8, 8]),  # none
        padded([7, 7, 7, 7]),  # an end mark
        padded([4, 4, 4, 4]),  # of one length: a part of the text, for all that is known
        padded([3, 8, 8, 8]),  # of one row
        torch.cat([padded([3, 5, 2, 4]), padded([3, 5, 2, 4])], 1),  # inside of rows too
        torch.zeros(4, 8, dtype=torch.int64),
    ],
)
def test_what_is_no_padding(tokens: Tensor) -> None:
    counted = torch.ones_like(tokens, dtype=torch.bool)
    assert not padded_targets(tokens, 0 * tokens, counted, None).any()


def test_padding_with_targets_that_differ_or_do_not_count() -> None:
    tokens = padded([3, 5, 2, 4])
    counted = torch.ones_like(tokens, dtype=torch.bool)
    assert not padded_targets(tokens, drawn(4, 8), counted, None).any()
    assert not padded_targets(tokens, 0 * tokens, tokens > 0, None).any()
