"""CKA against the definition of the unbiased HSIC as a sum over quadruples, and against full n × n matrices."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope.tensor.features import similarity
from learnscope.tensor.features.similarity import unbiased_cka, why_no_cka

Array = np.ndarray[Any, Any]


def noise(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def gram(x: Tensor) -> Array:
    wide = x.double().numpy()
    return wide @ wide.T


def by_quadruples(k: Array, m: Array) -> float:
    """The U-statistic: a mean over all ordered quadruples of different examples."""
    terms = [k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q]) for i, j, q, r in permutations(range(len(k)), 4)]
    return float(np.mean(terms))


def by_matrices(k: Array, m: Array) -> float:
    """The formula of the paper, with the diagonals set to zero."""
    n, one = len(k), np.ones(len(k))
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    sums = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ k @ m @ one)
    return float((np.trace(k @ m) + sums) / (n * (n - 3)))


def reference(x: Tensor, y: Tensor, hsic: Any) -> float:
    k, m = gram(x), gram(y)
    return float(hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m)))


@pytest.mark.parametrize(("n", "first", "second"), [(4, 3, 3), (7, 2, 5), (7, 30, 3), (8, 20, 40)])
def test_against_quadruples(n: int, first: int, second: int) -> None:
    x = noise(n, first, 0)
    y = torch.cat([x[:, :1], noise(n, second - 1, 1)], 1) + 3
    expected = reference(x, y, by_quadruples)
    assert abs(expected) > 1e-3
    assert unbiased_cka(x, y) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("n", "d"), [(200, 16), (60, 300)])
def test_the_formula_of_the_paper(n: int, d: int) -> None:
    x = noise(n, d, 2) * torch.linspace(0.1, 3, d)
    y = torch.tanh(x @ noise(d, d, 3) / d**0.5) + 0.3 * noise(n, d, 4)
    assert unbiased_cka(x, y) == pytest.approx(reference(x, y, by_matrices), rel=1e-9)


def test_noise_is_unlike_noise() -> None:
    """The usual, biased CKA of such features is 0.887."""
    unbiased = [unbiased_cka(noise(64, 512, seed), noise(64, 512, seed + 1000)) for seed in range(40)]
    assert np.mean(unbiased) == pytest.approx(0, abs=0.015)
    assert max(map(abs, unbiased)) < 0.15


def test_what_cka_does_not_see() -> None:
    x, y = noise(50, 10, 5), noise(50, 6, 6)
    y = y + x[:, :6]
    plain = unbiased_cka(x, y)
    turned = torch.linalg.qr(noise(10, 10, 7).double()).Q
    assert unbiased_cka(x.double() @ turned, y) == pytest.approx(plain, rel=1e-9)
    assert unbiased_cka(x * 1e30, y * 1e-30) == pytest.approx(plain, rel=1e-6)
    assert unbiased_cka(x.double() * 1e200, y.double() * 1e-200) == pytest.approx(plain, rel=1e-9)
    assert unbiased_cka(x.double() + 1e6, y) == pytest.approx(plain, rel=1e-6)
    assert unbiased_cka(y, x) == pytest.approx(plain, rel=1e-12)
    assert unbiased_cka(x, x) == pytest.approx(1, abs=1e-12)
    assert unbiased_cka(x.bfloat16(), x.bfloat16()) == pytest.approx(1, abs=1e-12)


def test_no_square_matrix_where_features_are_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    matmul = torch.Tensor.__matmul__

    def seen(a: Tensor, b: Tensor) -> Tensor:
        made = matmul(a, b)
        shapes.append(tuple(made.shape))
        return made

    monkeypatch.setattr(torch.Tensor, "__matmul__", seen)
    unbiased_cka(noise(5000, 8, 0), noise(5000, 12, 1))
    assert shapes
    assert max(math.prod(shape) for shape in shapes) <= 5000


def test_what_has_no_cka_says_why() -> None:
    x = noise(10, 3, 0)
    constant = torch.full((10, 3), 0.1)
    apart = torch.eye(10)  # every two examples equally alike
    broken = x.clone()
    broken[2, 1] = float("nan")
    for bad, word in ((constant, "same for every example"), (apart, "equally alike"), (broken, "not finite")):
        assert math.isnan(unbiased_cka(x, bad))
        assert math.isnan(unbiased_cka(bad, x))
        reason = why_no_cka(bad)
        assert reason is not None
        assert word in reason
    assert why_no_cka(x) is None
    assert why_no_cka(torch.cat([constant, x], 1)) is None
    assert "needs 4 examples; there are 3" in str(why_no_cka(x[:3]))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 4 examples; there are 3"):
        unbiased_cka(noise(3, 2, 0), noise(3, 2, 1))
    with pytest.raises(ValueError, match="features of 5 and 6 examples"):
        unbiased_cka(noise(5, 2, 0), noise(6, 2, 1))
    with pytest.raises(ValueError, match=r"\[examples, dimensions\], not \[5, 2, 2\]"):
        unbiased_cka(noise(5, 4, 0).reshape(5, 2, 2), noise(5, 2, 1))


def test_without_autocast_or_inference_mode() -> None:
    x, y = noise(40, 8, 0), noise(40, 8, 1)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        inside = unbiased_cka(x.clone(), y)
    assert inside == unbiased_cka(x, y)
    assert similarity.FEWEST == 4
