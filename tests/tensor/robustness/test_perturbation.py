"""Steps, projections and random perturbations, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from learnscope.intervals import mean_interval
from learnscope.tensor.robustness.perturbation import (
    Ball,
    Norm,
    ascend,
    clipped,
    project,
    random_of_equal_norm,
    uniform,
)

B, T, H = 3, 5, 4


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ball(norm: Norm, lead: int, free: Tensor | None = None) -> Ball:
    cells = (B, T, 1) if lead == 2 else (B, 1, 1)
    radius = noise(*cells, seed=5).abs() + 0.1
    return Ball(norm, radius, torch.ones(B, T, 1, dtype=torch.bool) if free is None else free, lead)


def cells(values: Tensor, lead: int) -> np.ndarray:
    return values.numpy().reshape(B * T, H) if lead == 2 else values.numpy().reshape(B, T * H)


@pytest.mark.parametrize("lead", [1, 2])
def test_l2_projection_is_the_nearest_point_of_the_ball(lead: int) -> None:
    bound = ball("l2", lead)
    delta = noise(B, T, H, seed=1)
    delta[0, 0] = 0  # no direction
    delta[1] *= 1e-3  # inside
    found, was, radius = cells(project(delta, bound), lead), cells(delta, lead), bound.radius.numpy().reshape(-1)
    lengths = np.linalg.norm(was, axis=1)
    assert (lengths > radius).any()
    assert (lengths < radius).any()
    for now, before, length, limit in zip(found, was, lengths, radius, strict=True):
        np.testing.assert_allclose(now, before * min(1, limit / length) if length else before, rtol=1e-12)
        assert np.linalg.norm(now) <= limit * (1 + 1e-12)
    # of the points of the ball none is nearer
    rng = np.random.default_rng(0)
    for _ in range(50):
        other = rng.normal(size=found.shape)
        other *= (radius * rng.uniform(0, 1, len(radius)) / np.linalg.norm(other, axis=1))[:, None]
        nearer = np.linalg.norm(other - was, axis=1) < np.linalg.norm(found - was, axis=1) - 1e-12
        assert not nearer.any()
    # once inside, it stays bit for bit
    again = project(project(delta, bound), bound)
    np.testing.assert_allclose(cells(again, lead), found, rtol=1e-12)
    assert torch.equal(project(delta[1:2] * 1e-3, ball_of(bound, 1)), delta[1:2] * 1e-3)


def ball_of(bound: Ball, place: int) -> Ball:
    return Ball(bound.norm, bound.radius[place : place + 1], bound.free[place : place + 1], bound.lead)


def test_linf_projection_clamps_every_entry() -> None:
    bound = ball("linf", 2)
    delta = noise(B, T, H, seed=2)
    limit = bound.radius.numpy()
    np.testing.assert_array_equal(project(delta, bound).numpy(), np.clip(delta.numpy(), -limit, limit))


@pytest.mark.parametrize("lead", [1, 2])
def test_the_l2_step_has_length_one_however_small_the_gradient(lead: int) -> None:
    gradient = (noise(B, T, H, seed=3) * 1e-30).float()  # its squares are 0 in float32
    gradient[2] = 0
    step = ascend(gradient, ball("l2", lead)).double()
    wide = cells(gradient.double(), lead)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    expected = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    np.testing.assert_allclose(cells(step, lead), expected, rtol=1e-5, atol=1e-7)
    assert (cells(step, lead)[-1] == 0).all()
    assert np.isfinite(cells(step, lead)).all()


def test_what_is_not_free_never_moves_and_padding_changes_no_draw() -> None:
    free = torch.ones(B, T, 1, dtype=torch.bool)
    free[0, 3:] = False
    free[2, 1:] = False
    for norm in ("linf", "l2"):
        for lead in (1, 2):
            bound = ball(norm, lead, free)
            wider = Ball(norm, _padded(bound.radius) if lead == 2 else bound.radius, _padded(free), lead)
            for draw in (uniform, random_of_equal_norm):
                made = draw(bound, torch.zeros(B, T, H, dtype=torch.float64), torch.Generator().manual_seed(7))
                more = draw(wider, torch.zeros(B, T + 2, H, dtype=torch.float64), torch.Generator().manual_seed(7))
                assert torch.equal(more[:, :T], made)
                assert not more[:, T:].any()
                assert not made[~free[..., 0]].any()
            for changed in (ascend(noise(B, T, H), bound), project(noise(B, T, H), bound)):
                assert not changed[~free[..., 0]].any()


def _padded(values: Tensor) -> Tensor:
    return torch.cat([values, torch.zeros(B, 2, 1, dtype=values.dtype)], 1)


def test_random_perturbations_are_as_large_as_they_may_be_and_starts_are_even() -> None:
    for lead in (1, 2):
        bound = ball("l2", lead)
        made = random_of_equal_norm(bound, torch.zeros(B, T, H, dtype=torch.float64), torch.Generator().manual_seed(1))
        np.testing.assert_allclose(np.linalg.norm(cells(made, lead), axis=1), bound.radius.reshape(-1), rtol=1e-12)
    signs = random_of_equal_norm(ball("linf", 2), torch.zeros(B, T, H, dtype=torch.float64), torch.Generator())
    np.testing.assert_array_equal(signs.abs().numpy(), ball("linf", 2).radius.expand(B, T, H).numpy())
    # the share of the volume within a radius r is r to the power of the dimension: uniform, by Kolmogorov and Smirnov
    many = Ball("l2", torch.ones(2000, 1, dtype=torch.float64), torch.ones(2000, 3, dtype=torch.bool), 1)
    points = uniform(many, torch.zeros(2000, 3, dtype=torch.float64), torch.Generator().manual_seed(2)).numpy()
    assert stats.kstest(np.linalg.norm(points, axis=1) ** 3, "uniform").pvalue > 0.01
    assert stats.kstest(points[:, 0], lambda x: (2 + 3 * x - x**3) / 4).pvalue > 0.01  # a coordinate's distribution
    cube = Ball("linf", torch.full((2000, 1), 2.0, dtype=torch.float64), torch.ones(2000, 3, dtype=torch.bool), 1)
    drawn = uniform(cube, torch.zeros(2000, 3, dtype=torch.float64), torch.Generator().manual_seed(3))
    assert stats.kstest(drawn.flatten().numpy(), "uniform", args=(-2, 4)).pvalue > 0.01


def test_clipping_keeps_the_input_in_its_range() -> None:
    origin, delta = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[-0.2, 0.2, 0.2]])
    assert torch.allclose(origin + clipped(delta, origin, (0, 1)), torch.tensor([[0.0, 0.7, 1.0]]))
    assert clipped(delta, origin, None) is delta


def test_the_interval_over_seeds_is_that_of_student() -> None:
    values = [0.3, 0.1, 0.7, 0.4, 0.35]
    mean, low, high = mean_interval(values)
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    np.testing.assert_allclose([mean, low, high], [np.mean(values), *expected], rtol=1e-12)
    assert np.isnan(mean_interval([1.0])[1:]).all()
    assert mean_interval([1.0])[0] == 1
    assert mean_interval([1.0, float("inf")])[0] == float("inf")
    assert np.isnan(mean_interval([])).all()
