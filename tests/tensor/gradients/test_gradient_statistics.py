"""`gradient_statistics` against NumPy in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compiler import needs_compiler
from learnscope.tensor.gradients import gradient
from learnscope.tensor.gradients.gradient import GradientTable, gradient_statistics, sum_squares
from learnscope.tensor.updates.delta import Form

SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-45, 1e-30, -2e-38, 3.4e38, -3.4e38, 1.0]


def check(table: GradientTable, grads: list[Tensor]) -> None:
    for index, grad in enumerate(grads):
        dense = grad.detach().to_dense() if grad.is_sparse else grad.detach()
        values = dense.double().numpy()
        with np.errstate(all="ignore"):
            expected = (values**2).sum()
        assert float(table.sum_squares[index]) == pytest.approx(expected, rel=2e-6, abs=0, nan_ok=True)
        exact = [(values == 0).sum(), np.isnan(values).sum(), np.isinf(values).sum()]
        got = [float(column[index]) for column in (table.zeros, table.nan, table.inf)]
        np.testing.assert_array_equal(got, exact)


def some(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    values[torch.rand(shape, generator=generator) < 0.1] = 0
    return values.to(dtype)


@pytest.mark.parametrize("form", ["chunked", "compiled"])
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-12, 1.0, 1e30])
def test_norms_hold_at_every_magnitude(scale: float, form: Form) -> None:
    if form == "compiled":  # where anything compiles, a kernel that does not must fail
        needs_compiler()
    grads = [some(*shape, scale=scale) for shape in [(400, 500), (7,), (), (0,), (600, 300)]]
    table = gradient_statistics(grads, form=form)
    check(table, grads)
    assert (table.sum_squares[[0, 1, 4]] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_and_layouts(dtype: torch.dtype) -> None:
    wide = some(900, 500, dtype=dtype)
    grads = [wide, wide.T, wide[::2, 1:], wide[:3].T, some(1, 9, dtype=dtype).expand(70_000, 9), wide[0, 0]]
    check(gradient_statistics(grads), grads)


def test_dtypes_together() -> None:
    grads = [some(300, dtype=kind) for kind in (torch.float32, torch.bfloat16, torch.float64, torch.float16)]
    check(gradient_statistics(grads), grads)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_awkward_inputs(data: st.DataObject) -> None:
    entry = st.floats(width=32) | st.sampled_from(SPECIAL)
    grads = []
    for _ in range(data.draw(st.integers(0, 4))):
        shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
        numbers = data.draw(st.lists(entry, min_size=math.prod(shape), max_size=math.prod(shape)))
        kind = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
        grads.append(torch.tensor(numbers, dtype=torch.float64).to(kind).reshape(shape))
    check(gradient_statistics(grads), grads)


def test_special_values_among_ordinary_ones() -> None:
    grad = some(200_000)
    grad[::1009][: len(SPECIAL)] = torch.tensor(SPECIAL)
    tiny = some(150_000, scale=1e-30)
    tiny[:512] = 1.0
    check(gradient_statistics([grad, tiny]), [grad, tiny])


def test_a_sparse_gradient_counts_what_it_does_not_store() -> None:
    places = torch.tensor([[3, 1, 3, 0]])
    values = torch.tensor([[1.0, 0.0], [2.0, 1e-30], [-1.0, 5.0], [0.0, 0.0]])
    grad = torch.sparse_coo_tensor(places, values, (10, 2), check_invariants=True)
    table = gradient_statistics([grad, torch.ones(2)])
    check(table, [grad, torch.ones(2)])
    assert table.zeros.tolist() == [17.0, 0.0]


def test_the_form_for_accelerators_agrees() -> None:
    rows = torch.stack([some(512, scale=scale) for scale in (0.0, 1e-40, 1e-25, 1.0, 1e30)])
    rows[3, 5] = math.inf
    rows = torch.cat([rows, torch.full((1, 512), math.nan)])
    torch.testing.assert_close(
        gradient._unbranched(rows), gradient._exact(rows, True), rtol=1e-6, atol=0, equal_nan=True
    )


def test_surroundings_change_nothing() -> None:
    grads = [some(200, 300), some(5), some(400, 500)]
    plain = gradient_statistics(grads)
    state = torch.get_rng_state()
    copies = [grad.clone() for grad in grads]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        again = gradient_statistics([grad.view(grad.shape) for grad in grads])
    for name in GradientTable.__dataclass_fields__:
        torch.testing.assert_close(getattr(again, name), getattr(plain, name), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(grads, copies, strict=True))


def test_sum_squares() -> None:
    assert sum_squares([torch.tensor([3.0, 4.0]), torch.zeros(0)]).tolist() == [25.0, 0.0]
    assert sum_squares([]).shape == (0,)
    with pytest.raises(TypeError, match=r"gradient 0 is torch\.int64"):
        sum_squares([torch.tensor([1])])


def exact(t: Tensor) -> float:
    return float(t.detach().to_dense().double().square().sum())


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-12, 1.0, 1e12, 1e30])
def test_squares_of_whole_rows_hold_at_every_magnitude(scale: float) -> None:
    """Tensors that are rows already, as adapters' gradients are, have a way of their own."""
    tensors = [some(16, 1024, scale=scale), some(1024, 16, scale=scale, seed=1), some(512, scale=scale, seed=2)]
    assert sum_squares(tensors).tolist() == pytest.approx([exact(t) for t in tensors], rel=1e-6, abs=0)


def test_squares_of_whole_rows_of_awkward_tensors() -> None:
    """Equal entries round alike; zeros, one bad row, other layouts, dtypes and a tensor that requires gradients."""
    alike = torch.full((16, 1024), 0.1)
    one_zero = some(4, 512)
    one_zero[2] = 0
    bad = some(4, 512)
    bad[1, 3] = torch.inf
    turned = some(512, 32).T
    groups = [
        [alike, alike * 3], [torch.zeros(2, 512)], [one_zero], [turned, alike], [some(2, 512).requires_grad_()],
        [some(2, 512), some(2, 512, dtype=torch.float64)], [some(2, 512), some(2, 512, dtype=torch.bfloat16)],
        [some(512), some(7)], [some(2, 512).to_sparse(), alike],
    ]  # fmt: skip
    for tensors in groups:
        assert sum_squares(tensors).tolist() == pytest.approx([exact(t) for t in tensors], rel=1e-6, abs=0)
    assert sum_squares([bad, alike]).tolist() == [torch.inf, pytest.approx(exact(alike), rel=1e-6)]


def test_counts_that_nobody_made_are_unknown() -> None:
    table = GradientTable.uncounted(sum_squares([some(512)]))
    assert table.sum_squares.isfinite().all()
    assert all(getattr(table, name).isnan().all() for name in ("zeros", "nan", "inf"))
