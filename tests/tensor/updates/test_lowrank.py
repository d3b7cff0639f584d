"""Low-rank factors against NumPy's singular values in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope.tensor.updates import lowrank
from learnscope.tensor.updates.lowrank import LowRank, NotDecomposedError, decompose


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def falling(m: int, n: int, power: float = 1.0) -> Tensor:
    """A matrix whose singular values are 1, 2^-power, 3^-power, …"""
    k = min(m, n)
    u, v = torch.linalg.qr(noise(m, k)).Q, torch.linalg.qr(noise(n, k, seed=1)).Q
    return u * torch.arange(1.0, k + 1, dtype=torch.float64) ** -power @ v.mT


def product(factors: LowRank, rank: int) -> np.ndarray:
    return (factors.left[:, :rank].double() @ factors.right[:rank].double()).numpy()


def best(matrix: np.ndarray, rank: int) -> np.ndarray:
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


SHAPES = [(7, 5), (5, 7), (1, 4), (60, 300), (300, 60)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_exact_factors(shape: tuple[int, int], dtype: torch.dtype, rel: float) -> None:
    matrix = noise(*shape).to(dtype)
    a = matrix.double().numpy()
    found = decompose(matrix, 4)
    assert found is not None
    assert found.exact
    assert found.left.dtype == dtype
    s = np.linalg.svd(a, compute_uv=False)
    np.testing.assert_allclose(found.values, s, rtol=rel, atol=rel * s[0])
    for rank in (1, 2, 4):
        np.testing.assert_allclose(product(found, rank), best(a, rank), atol=rel * s[0] * 10)
        assert found.energy(rank) == pytest.approx((s[:rank] ** 2).sum(), rel=rel * 10)
    assert found.norm == pytest.approx(np.linalg.norm(a), rel=rel)
    assert found.stable_rank == pytest.approx((s**2).sum() / s[0] ** 2, rel=rel * 10)
    shares = (s**2).cumsum() / (s**2).sum()
    assert found.rank_for(0.9) == int((shares < 0.9).sum()) + 1


@pytest.mark.parametrize("shape", [(300, 420), (420, 300)])
@pytest.mark.parametrize("power", [0.7, 0.0])
def test_the_iteration_is_near_the_best(shape: tuple[int, int], power: float) -> None:
    """On falling singular values next to exact; on nearly equal ones (noise) at most 1 % of the energy is lost."""
    matrix = (falling(*shape, power) if power else noise(*shape)).float()
    a = matrix.double().numpy()
    s = np.linalg.svd(a, compute_uv=False)
    found = decompose(matrix, 32)
    assert found is not None
    assert not found.exact
    assert len(found.values) == 32
    for rank in (1, 8, 32):
        most = (s[:rank] ** 2).sum()
        assert most * (1 - (1e-5 if power else 1e-2)) < found.energy(rank) < most * (1 + 1e-5)
        left = np.linalg.norm(a - product(found, rank)) ** 2
        assert left == pytest.approx((s**2).sum() - found.energy(rank), rel=1e-4), "what is said to be held is held"
    if power:
        np.testing.assert_allclose(found.values[:16], s[:16], rtol=1e-4)
        assert found.rank_for(0.5) == int(((s**2).cumsum() / (s**2).sum() < 0.5).sum()) + 1
    else:
        assert found.rank_for(0.9) is None, "beyond what was computed"


@pytest.mark.parametrize("shape", [(20, 30), (400, 300), (300, 400)])
def test_a_matrix_of_rank_three(shape: tuple[int, int]) -> None:
    matrix = (noise(shape[0], 3) @ noise(3, shape[1], seed=1)).float()
    found = decompose(matrix, 8)
    assert found is not None
    assert found.energy(3) == pytest.approx(found.sum_squares, rel=1e-5)
    assert found.energy(2) < 0.95 * found.sum_squares
    for rank in (3, 4, 8):
        np.testing.assert_allclose(product(found, rank), matrix.double().numpy(), atol=1e-4)
    assert found.rank_for(0.9999) == 3


def test_equal_matrices_give_equal_factors_and_no_random_number_is_drawn() -> None:
    matrix = noise(300, 320).float()
    before = torch.get_rng_state()
    first = decompose(matrix, 4)
    torch.manual_seed(7)
    second = decompose(matrix.clone(), 4)
    torch.set_rng_state(before)
    third = decompose(matrix, 4)
    assert first is not None
    assert second is not None
    assert third is not None
    assert torch.equal(first.left, second.left)
    assert torch.equal(first.right, third.right)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30, 2e38])
def test_tiny_and_huge_entries(scale: float) -> None:
    matrix = (noise(6, 9).clamp(-1, 1) * scale).float()
    found = decompose(matrix, 3)
    assert found is not None
    a = matrix.double().numpy()
    np.testing.assert_allclose(found.values, np.linalg.svd(a, compute_uv=False), rtol=1e-4)
    assert found.stable_rank == pytest.approx(np.linalg.norm(a) ** 2 / np.linalg.norm(a, 2) ** 2, rel=1e-4)


def test_float64_beyond_its_squares() -> None:
    for scale in (1e-200, 1e200):
        found = decompose(noise(4, 5) * scale, 2)
        plain = decompose(noise(4, 5), 2)
        assert found is not None
        assert plain is not None
        assert found.stable_rank == pytest.approx(plain.stable_rank, rel=1e-9)
        assert found.rank_for(0.9) == plain.rank_for(0.9)


def test_what_has_no_singular_values() -> None:
    assert decompose(torch.zeros(4, 3), 2) is None
    assert decompose(torch.zeros(0, 3), 2) is None
    for bad in (float("nan"), float("inf"), -float("inf")):
        matrix = noise(4, 3)
        matrix[2, 1] = bad
        with pytest.raises(NotDecomposedError, match="not finite"):
            decompose(matrix, 2)


def test_lapack_that_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "svd", fail)
    with pytest.raises(NotDecomposedError, match="did not converge"):
        decompose(noise(4, 3), 2)


def test_full_rank_holds_everything_exactly() -> None:
    found = decompose(noise(5, 8).float(), 32)
    assert found is not None
    assert found.energy(5) == found.energy(32) == found.sum_squares
    assert found.rank_for(1.0) is not None


@pytest.mark.parametrize("chunk", [1, 20, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_adding_to_old_weights(chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowrank, "CHUNK", chunk)
    old = noise(6, 2, 3, 3).to(dtype)
    delta = noise(6, 18, seed=1).to(torch.float64 if dtype == torch.float64 else torch.float32)
    out = torch.empty_like(old, memory_format=torch.channels_last)
    found = decompose(delta, 4)
    assert found is not None
    found.add_to(old, 2, out)
    expected = old.double().numpy().reshape(6, 18) + best(delta.double().numpy(), 2)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float64: 1e-12}[dtype]
    np.testing.assert_allclose(out.double().numpy().reshape(6, 18), expected, atol=tolerance)
    found.add_to(old, 0, out)
    assert torch.equal(out, old), "no rank is no update"


def test_the_callers_autocast_does_not_matter() -> None:
    for shape in ((20, 30), (300, 320)):
        matrix, out, inside_out = noise(*shape).float(), torch.empty(shape), torch.empty(shape)
        plain = decompose(matrix, 4)
        with torch.autocast("cpu", torch.bfloat16):
            inside = decompose(matrix, 4)
            assert inside is not None
            inside.add_to(matrix, 3, inside_out)
        assert plain is not None
        plain.add_to(matrix, 3, out)
        assert torch.equal(plain.left, inside.left)
        assert torch.equal(out, inside_out)
