"""Singular values of whole matrices against NumPy's, on spectra that decay, lie close together, or end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope.tensor.weights.singular import SMALL, all_values, leading_values

SHAPE = (600, 700)
"""Above the size up to which everything is decomposed in full."""


def with_spectrum(values: Tensor, rows: int = SHAPE[0], columns: int = SHAPE[1]) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    left, right = (
        torch.linalg.qr(torch.randn(n, len(values), generator=generator, dtype=torch.float64)).Q
        for n in (rows, columns)
    )
    return (left * values) @ right.mT


def noise(rows: int = SHAPE[0], columns: int = SHAPE[1]) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


RANKS = torch.arange(1, SHAPE[0] + 1, dtype=torch.float64)
SPECTRA: dict[str, Callable[[], Tensor]] = {
    "slow decay": lambda: with_spectrum(RANKS**-0.25),
    "fast decay": lambda: with_spectrum(torch.exp(-RANKS / 10)),
    "noise": noise,
    "spikes in noise": lambda: noise() + with_spectrum(torch.tensor([200.0, 150.0, 149.9], dtype=torch.float64)),
    "all equal": lambda: with_spectrum(torch.ones(SHAPE[0], dtype=torch.float64)),
    "more equal than wanted": lambda: with_spectrum(torch.where(RANKS <= 40, 3.0, 0.5)),
    "rank 5": lambda: with_spectrum(torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)),
    "tall": lambda: noise(700, 600),
    "tiny entries": lambda: 1e-200 * noise(),
    "huge entries": lambda: 1e200 * noise(),
    "few columns of noise": lambda: noise(2000, 520),
}


@pytest.mark.parametrize("kind", SPECTRA)
def test_the_largest_values_are_numpys(kind: str) -> None:
    matrix = SPECTRA[kind]()
    assert min(matrix.shape) > SMALL
    truth = np.linalg.svd(matrix.numpy(), compute_uv=False)
    found = leading_values(matrix, 16)
    assert found is not None
    np.testing.assert_allclose(found.values.numpy(), truth[:16], rtol=1e-7, atol=1e-12 * truth[0])
    largest = np.abs(matrix.numpy()).max()
    assert found.norm == pytest.approx(largest * np.linalg.norm(matrix.numpy() / largest), rel=1e-12)
    # the promise: below the true value of the same rank, and near a true one
    assert (found.values.numpy() <= truth[:16] * (1 + 1e-12)).all()
    nearest = np.abs(found.values.numpy()[:, None] - truth[None]).min(1)
    assert (nearest <= found.error * truth[0] + 1e-12 * truth[0]).all()
    assert found.error <= 1e-4


def test_equal_matrices_give_equal_values_and_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    first, second = (leading_values(noise().float(), 4) for _ in range(2))
    assert first is not None
    assert second is not None
    assert torch.equal(first.values, second.values)
    assert torch.equal(before, torch.get_rng_state())


def test_an_iteration_cut_short_says_how_far_off_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnscope.tensor.weights.singular.CHECKS", (2,))
    found = leading_values(noise(), 16)
    truth = np.linalg.svd(noise().numpy(), compute_uv=False)
    assert found is not None
    assert found.error > 1e-4
    assert (found.values.numpy() <= truth[:16]).all()
    assert np.abs(found.values.numpy()[:, None] - truth[None]).min(1).max() <= found.error * truth[0]


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 1), (5, 9), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_all_values_are_numpys(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrices = [noise(*shape).to(dtype) * (place + 1) for place in range(3)]
    kept = [one.clone() for one in matrices]
    for matrix, found in zip(matrices, all_values(matrices), strict=True):
        truth = np.linalg.svd(matrix.double().numpy(), compute_uv=False)
        assert found is not None
        np.testing.assert_allclose(found.numpy(), truth, rtol=1e-12, atol=1e-14 * truth[0])
        few = leading_values(matrix, 3)
        assert few is not None
        np.testing.assert_allclose(few.values.numpy(), truth[:3], rtol=1e-12, atol=1e-14 * truth[0])
    assert all(torch.equal(a, b) for a, b in zip(matrices, kept, strict=True))


def test_rounding_is_zero_and_zero_is_zero() -> None:
    thin = noise(40, 3) @ noise(3, 40)
    values, none = all_values([thin, torch.zeros(4, 6)])
    assert values is not None
    assert int((values > 0).sum()) == 3
    assert (values[3:] == 0).all()
    assert none is not None
    assert none.tolist() == [0.0] * 4
    empty = leading_values(torch.zeros(600, 600), 3)
    assert empty is not None
    assert (empty.values.tolist(), empty.norm, empty.error) == ([0.0] * 3, 0.0, 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_has_none_and_spoils_no_other(bad: float) -> None:
    broken = noise(8, 8)
    broken[2, 3] = bad
    good, none, again = all_values([noise(8, 8), broken, noise(8, 8)])
    assert none is None
    assert good is not None
    assert again is not None
    np.testing.assert_allclose(good.numpy(), np.linalg.svd(noise(8, 8).numpy(), compute_uv=False), rtol=1e-12)
    large = noise()
    large[0, 0] = bad
    assert leading_values(large, 4) is None
