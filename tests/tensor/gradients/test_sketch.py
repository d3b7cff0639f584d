"""The sketch is linear, unbiased, of the promised error, and the same everywhere."""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope.tensor.gradients.sketch import PERIOD, sketch, sketched_cosines
from learnscope.tensor.gradients.sketch import SIZE as DEFAULT
from learnscope.tensor.segments import Segments

SIZE = 256


def gradients(kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two gradients of 200 × 400 with a cosine near 0.6."""
    shape = (200, 400)

    def draw() -> Tensor:
        if kind == "random":
            return torch.randn(shape, generator=generator)
        if kind == "rank one":
            return torch.outer(torch.randn(200, generator=generator), torch.randn(400, generator=generator))
        heavy = torch.randn(shape, generator=generator) ** 5
        return heavy * (torch.rand(shape, generator=generator) < 0.05)

    common = draw()
    return 0.6 * common + 0.8 * draw(), common


@pytest.mark.parametrize("kind", ["random", "rank one", "heavy-tailed"])
def test_inner_products_are_unbiased_with_the_stated_error(kind: str) -> None:
    one, two = gradients(kind, torch.Generator().manual_seed(5))
    one, two = one / one.norm(), two / two.norm()
    truth = float((one.double() * two.double()).sum())
    estimates = np.array([float(sketch(one, SIZE, seed) @ sketch(two, SIZE, seed)) for seed in range(200)])
    spread = estimates.std()
    assert abs(estimates.mean() - truth) < 4 * spread / np.sqrt(len(estimates))
    # (1 + cos²)/size is the variance of independent signs where the entries are spread over the buckets
    assert 0.3 * np.sqrt((1 + truth**2) / SIZE) < spread < 1.6 * np.sqrt((1 + truth**2) / SIZE)


def test_places_and_signs_as_documented() -> None:
    count = 2 * PERIOD + 100
    for place in (0, 7, 1024, PERIOD - 1, PERIOD, 2 * PERIOD + 99):
        grad = torch.zeros(count)
        grad[place] = 3.0
        result = sketch(grad, 1000)
        assert result.nonzero().tolist() == [[place % 1000]]
        assert abs(float(result[place % 1000])) == 3.0
    # signs are balanced: with one sign for all, the sum would be the number of entries
    assert float(sketch(torch.ones(count), 1000).abs().sum()) < count / 4


def test_linear() -> None:
    generator = torch.Generator().manual_seed(1)
    one, two = (torch.randn(300, 500, generator=generator, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(sketch(2 * one - 3 * two), 2 * sketch(one) - 3 * sketch(two))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_layouts_give_the_sketch_of_the_values(dtype: torch.dtype) -> None:
    wide = torch.randn(1500, 900, generator=torch.Generator().manual_seed(2)).to(dtype)
    for view in (wide.T, wide[::2, 1:], wide[:, 3], wide[0, 0], wide[:0], wide[:1].expand(200, 900)):
        torch.testing.assert_close(sketch(view), sketch(view.contiguous()), rtol=1e-9, atol=1e-4)
        torch.testing.assert_close(sketch(view), sketch(view.double()), rtol=1e-4, atol=1e-4)


def test_sparse_equals_dense() -> None:
    places = torch.tensor([[3, 1, 3, 700]])
    values = torch.randn(4, 300, generator=torch.Generator().manual_seed(3))
    grad = torch.sparse_coo_tensor(places, values, (1000, 300), check_invariants=True)
    torch.testing.assert_close(sketch(grad), sketch(grad.to_dense()))
    nowhere = torch.zeros(1, 0, dtype=torch.int64)
    empty = torch.sparse_coo_tensor(nowhere, torch.zeros(0, 3), (10, 3), check_invariants=True)
    assert sketch(empty).abs().sum() == 0


def test_surroundings_change_nothing() -> None:
    grad = torch.randn(100_000, generator=torch.Generator().manual_seed(4)).requires_grad_()
    plain, state = sketch(grad), torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        assert torch.equal(sketch(grad), plain)
    assert torch.equal(sketch(grad, seed=9), sketch(grad, seed=9))
    assert not torch.equal(sketch(grad, seed=9), plain)
    assert torch.equal(torch.get_rng_state(), state)
    assert not plain.requires_grad


def test_the_same_in_another_process() -> None:
    program = "from learnscope.tensor.gradients.sketch import sketch; print(sketch(torch.arange(1e5), 4).tolist())"
    code = f"import torch; {program}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(sketch(torch.arange(1e5), 4).tolist())


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="size is 0"):
        sketch(torch.ones(3), 0)
    with pytest.raises(ValueError, match=str(PERIOD)):
        sketch(torch.ones(3), PERIOD)
    with pytest.raises(TypeError, match=r"torch\.int64"):
        sketch(torch.tensor([1]))


def columns_of_a_matrix(generator: torch.Generator) -> Tensor:
    """Nearly all in three of 1024 columns: with a sketch of 1024 numbers these would be three buckets."""
    x = 1e-3 * torch.randn(60, 1024, generator=generator)
    x[:, [3, 400, 900]] = torch.randn(60, 3, generator=generator)
    return x


SHAPES: dict[str, Callable[[torch.Generator], Tensor]] = {
    "dense": lambda generator: torch.randn(70, 90, generator=generator),
    "rank one": lambda g: torch.outer(torch.randn(70, generator=g), torch.randn(90, generator=g)),
    "columns": columns_of_a_matrix,
    "a few rows": lambda g: torch.randn(200, 64, generator=g) * (torch.arange(200) % 20 == 0)[:, None],
    "heavy-tailed": lambda g: torch.randn(70, 90, generator=g) ** 3,
}


@pytest.mark.parametrize("share", [0.0, 0.6, -0.95])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_stated_error_of_a_cosine_holds_nineteen_times_in_twenty(kind: str, share: float) -> None:
    """Against the exact cosine, over layers of a matrix and a bias; the bias alone is exact."""
    generator = torch.Generator().manual_seed(11)
    draws, off, errors = 100, [], []
    layers = Segments({"layer": [0, 1], "bias": [1]})
    for seed in range(draws):
        old = [SHAPES[kind](generator), torch.randn(50, generator=generator)]
        fresh = [SHAPES[kind](generator), torch.randn(50, generator=generator)]
        new = [share * a + (1 - share**2) ** 0.5 * b for a, b in zip(old, fresh, strict=True)]
        sketches = [torch.stack([sketch(g, DEFAULT, seed) for g in grads]) for grads in (new, old)]
        cosine, error = sketched_cosines(*sketches, [g.numel() for g in new], layers)
        x, y = (torch.cat([g.double().flatten() for g in grads]) for grads in (new, old))
        off.append(float(cosine[0] - x @ y / (x.norm() * y.norm())))
        errors.append(float(error[0]))
        bias = new[1].double() @ old[1].double() / (new[1].double().norm() * old[1].double().norm())
        assert cosine[1].item() == pytest.approx(bias.item(), abs=1e-6)
        assert error[1] == 0
    inside = np.mean(np.abs(off) <= np.array(errors))
    assert inside > 0.88, "95 % less three standard errors of 100 draws"
    if kind == "dense":
        assert np.std(off) > 0.65 * np.mean(errors) / 1.96, "it is an error, not a bound that says nothing"
