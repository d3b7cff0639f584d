"""Squared distances against float64 NumPy, at any magnitude, in any layout, and however the parts are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learnscope.tensor.updates.distance import PIECE, squared_distances

Part = tuple[int, Tensor, Tensor]


def reference(parts: list[Part], count: int) -> Any:
    found = np.zeros((2, count))
    for owner, new, old in parts:
        a, b = (t.detach().double().numpy() for t in (new, old))
        found[0, owner] += ((a - b) ** 2).sum()
        found[1, owner] += (b**2).sum()
    return found


def check(parts: list[Part], count: int, rtol: float = 1e-6) -> None:
    found = squared_distances(iter(parts), count)
    assert (found.shape, found.dtype, found.device.type) == ((2, count), torch.float64, "cpu")
    np.testing.assert_allclose(found.numpy(), reference(parts, count), rtol=rtol, atol=0)


shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


@st.composite
def random_parts(draw: st.DrawFn) -> tuple[list[Part], int]:
    count = draw(st.integers(1, 4))
    parts = []
    for _ in range(draw(st.integers(0, 6))):
        shape, kind, other = draw(shapes), draw(dtypes), draw(dtypes)
        scale = 10.0 ** draw(st.integers(-30, 30)) if torch.float16 not in (kind, other) else 1.0
        generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
        new, old = (torch.randn(2, *shape, generator=generator, dtype=torch.float64) * scale).unbind(0)
        if draw(st.booleans()) and new.ndim > 1:
            new = new.transpose(0, -1).contiguous().transpose(0, -1)
        parts.append((draw(st.integers(0, count - 1)), new.to(kind), old.to(other)))
    return parts, count


@given(random_parts())
@settings(deadline=None, max_examples=150)
def test_random_parts(case: tuple[list[Part], int]) -> None:
    check(*case)


@given(st.integers(0, 2000), st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=50)
def test_symmetry_and_scale(length: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(length)
    new, old = torch.randn(2, length, generator=generator)
    there, back = (squared_distances([(0, a, b)], 1)[0, 0].item() for a, b in ((new, old), (old, new)))
    assert there == back
    assert squared_distances([(0, new, new)], 1)[0, 0].item() == 0.0
    scaled = squared_distances([(0, new.double() * factor, old.double() * factor)], 1)[0, 0].item()
    assert scaled == pytest.approx(factor**2 * there, rel=1e-6)


def test_many_small_and_some_large_parts_that_fill_the_buffer_several_times() -> None:
    sizes = [PIECE, 1, 511, 512, 513, 0, PIECE - 1, 7, PIECE // 2 + 3, PIECE // 2, 30_001] + [700] * 300
    generator = torch.Generator().manual_seed(0)
    parts = [
        (number % 5, torch.randn(size, generator=generator), torch.randn(size, generator=generator))
        for number, size in enumerate(sizes)
    ]
    check(parts, 5)


def test_no_parts_at_all() -> None:
    assert squared_distances([], 3).tolist() == [[0.0] * 3] * 2
    assert squared_distances([], 0).shape == (2, 0)


def test_what_a_short_part_leaves_of_a_longer_one_before_it_is_not_read() -> None:
    """Both lie in the same buffer, one flush after the other."""
    long, short = torch.full((PIECE,), 3.0), torch.full((PIECE - 511,), 1.0)
    parts = [(0, long, long * 2), (1, short, short * 2)]
    assert squared_distances(parts, 2)[0].tolist() == pytest.approx([9.0 * PIECE, PIECE - 511], rel=1e-6)


def test_a_part_may_be_forgotten_when_the_next_one_is_asked_for() -> None:
    space = torch.zeros(2, 600)

    def parts() -> Any:
        for owner in range(3):
            space[0], space[1] = owner + 1.0, 1.0
            yield owner, space[0], space[1]
            space.fill_(torch.nan)

    change, before = squared_distances(parts(), 3).tolist()
    assert change == pytest.approx([0.0, 600.0, 2400.0], rel=1e-6)
    assert before == pytest.approx([600.0] * 3, rel=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_spoils_its_owner_only(bad: float) -> None:
    new = torch.ones(1000)
    new[700] = bad
    found = squared_distances([(0, new, torch.zeros(1000)), (1, torch.ones(5), torch.zeros(5))], 2)
    assert not found[0, 0].isfinite()
    assert found[0, 1].item() == pytest.approx(5.0)
    assert found[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("surroundings", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_surroundings_change_nothing(surroundings: Any) -> None:
    new = torch.randn(3000, requires_grad=True)
    old = torch.randn(3000)
    expected = squared_distances([(0, new, old)], 1)
    with surroundings():
        assert torch.equal(squared_distances([(0, new, old)], 1), expected)
    assert not expected.requires_grad


def test_the_arguments_are_left_as_they_are() -> None:
    new, old = torch.randn(2, 100)
    before = new.clone(), old.clone()
    squared_distances([(0, new, old)], 1)
    assert torch.equal(new, before[0])
    assert torch.equal(old, before[1])
