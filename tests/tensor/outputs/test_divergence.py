"""Divergences against SciPy, NumPy and 60-digit arithmetic."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr, softmax
from torch import Tensor

from learnscope.tensor.outputs import divergence, fused_divergence
from learnscope.tensor.outputs.divergence import Comparison, compare_logits, reference_rows, summarise
from learnscope.tensor.outputs.fused_divergence import first_largest, row_facts

HALVES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FUSED = [torch.float32, torch.bfloat16, torch.float16]
INF, NAN = math.inf, math.nan


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.double().numpy()


def exact_kl(a: Tensor, b: Tensor) -> float:
    """One row, in 60 digits."""
    with mpmath.workdps(60):
        x, y = ([mpmath.mpf(v) for v in row.double().tolist()] for row in (a, b))
        norm_x, norm_y = (mpmath.log(sum(mpmath.exp(v) for v in row)) for row in (x, y))
        return float(sum(mpmath.exp(u - norm_x) * ((u - norm_x) - (v - norm_y)) for u, v in zip(x, y, strict=True)))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("chunk", [1, 40, 1 << 19])
def test_against_scipy(dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "CHUNK", chunk)
    a, b = (4 * noise(23, 17)).to(dtype), (4 * noise(23, 17, seed=1)).to(dtype)
    found = compare_logits(a, b, torch.arange(23) % 17)
    x, y = array(a), array(b)
    np.testing.assert_allclose(found.kl, rel_entr(softmax(x, 1), softmax(y, 1)).sum(1), rtol=1e-12)
    np.testing.assert_allclose(
        found.cosine, (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1), rtol=1e-12
    )
    np.testing.assert_allclose(found.mse, ((x - y) ** 2).mean(1), rtol=1e-13)
    first, second, truth = x.argmax(1), y.argmax(1), np.arange(23) % 17
    np.testing.assert_array_equal(found.agree, first == second)
    np.testing.assert_array_equal(found.broke, (first == truth) & (second != truth))
    np.testing.assert_array_equal(found.mended, (first != truth) & (second == truth))
    assert {t.dtype for t in (found.kl, found.cosine, found.mse)} == {torch.float64}
    assert found.agree.dtype == torch.bool


def test_flips_are_seen() -> None:
    a = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]])
    b = torch.tensor([[0.0, 2.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    found = compare_logits(a, b, torch.tensor([0, 0, 0, 1]))
    assert found.broke is not None
    assert found.mended is not None
    assert found.broke.tolist() == [True, False, False, False]
    assert found.mended.tolist() == [False, True, False, True]
    summary = summarise([found])
    assert (summary["broke"], summary["mended"], summary["top1_agree"]) == (0.25, 0.5, 0.25)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_reference_against_itself_is_exact(dtype: torch.dtype) -> None:
    logits = (30 * noise(64, 501)).to(dtype)
    logits[:, 7] = -INF  # a masked class
    logits[3, 100:] = -INF
    logits[5] = 2
    found = compare_logits(logits, logits.clone(), torch.zeros(64, dtype=torch.int64))
    summary = {name: float(value) for name, value in summarise([found]).items()}
    assert summary == {
        "kl": 0, "kl_median": 0, "kl_p99": 0, "cosine": 1, "mse": 0, "top1_agree": 1, "broke": 0, "mended": 0,
    }  # fmt: skip
    assert float(found.kl.max()) == float(found.mse.max()) == 0
    assert float(found.cosine.min()) == 1


@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_tiny_divergences_are_not_noise(size: float, shift: float, masked: bool) -> None:
    """A common shift of all logits changes no probability."""
    a = 3 * noise(4, 50)
    b = a + size * noise(4, 50, seed=1) + shift
    if masked:
        a[:, 9] = b[:, 9] = -INF
    keep = [i for i in range(50) if not (masked and i == 9)]
    found = compare_logits(a, b).kl
    for row in range(4):
        expected = exact_kl(a[row, keep], b[row, keep])
        # adding a shift in float64 costs digits of the logits themselves; exact_kl sees the same rounded logits
        assert float(found[row]) == pytest.approx(expected, rel=1e-6, abs=0)
        assert 0 < expected < size**2 * 2


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0.0, -1000.0], [0.0, 0.0]),
        ([0.0, 0.0], [0.0, -1000.0]),
        ([0.0, -2000.0, -3000.0], [-2000.0, 0.0, -10.0]),
        ([0.0, -5000.0], [0.0, -4000.0]),
        ([1e4, 0.0, -1e4], [-1e4, 0.0, 1e4]),
        ([-INF, 0.0, 1.0], [2.0, 0.0, 1.0]),
        ([-INF, 0.0, 1.0], [-INF, 2.0, 1.0]),
    ],
)
def test_huge_differences_and_masks(a: list[float], b: list[float]) -> None:
    x, y = np.array(a), np.array(b)
    log_p, log_q = log_softmax(x), log_softmax(y)
    p = np.exp(log_p)
    expected = sum(p[i] * (log_p[i] - log_q[i]) for i in range(len(a)) if p[i] > 0)
    found = compare_logits(torch.tensor([a]), torch.tensor([b])).kl
    assert float(found) == pytest.approx(float(expected), rel=1e-6, abs=1e-15)


def test_a_class_that_became_impossible_is_infinitely_far() -> None:
    found = compare_logits(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, -INF]]))
    assert float(found.kl) == INF
    assert float(found.mse) == INF


def test_entries_infinite_alike_are_left_out() -> None:
    a = torch.tensor([[1.0, -INF, 2.0], [1.0, INF, 2.0]])
    b = torch.tensor([[3.0, -INF, 1.0], [3.0, INF, 1.0]])
    found = compare_logits(a, b)
    assert found.mse.tolist() == [2.5, 2.5]
    assert found.cosine.tolist() == pytest.approx([5 / math.sqrt(5) / math.sqrt(10)] * 2)
    assert float(found.kl[0]) == pytest.approx(exact_kl(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])), rel=1e-12)
    assert math.isnan(found.kl[1]), "a logit of +∞ among several is no distribution"


def test_nan_and_impossible_rows() -> None:
    a = torch.tensor([[NAN, 1.0], [1.0, 2.0], [NAN, NAN], [-INF, -INF], [1.0, 2.0]])
    b = torch.tensor([[0.0, 1.0], [1.0, NAN], [NAN, NAN], [-INF, -INF], [1.0, 2.0]])
    found = compare_logits(a, b, torch.tensor([1, 1, 1, 1, 1]))
    assert found.kl.isnan().tolist() == [True, True, True, True, False]
    assert found.mse[:3].isnan().all()
    assert found.agree.tolist()[:3] == [False, False, False]
    assert found.agree.tolist()[4] is True
    assert found.broke is not None
    assert found.broke.tolist()[1] is True, "what predicts nothing is wrong"
    summary = summarise([found])
    assert all(math.isnan(summary[name]) for name in ("kl", "kl_median", "kl_p99"))


@pytest.mark.parametrize("shape", [(40,), (40, 1), (10, 4, 1)])
def test_a_single_logit_is_a_bernoulli_variable(shape: tuple[int, ...]) -> None:
    a, b = 5 * noise(40), 5 * noise(40, seed=1)
    truth = torch.arange(40) % 2
    found = compare_logits(a.reshape(shape), b.reshape(shape), truth)
    p, q = (1 / (1 + np.exp(-array(x))) for x in (a, b))
    np.testing.assert_allclose(found.kl, rel_entr(p, q) + rel_entr(1 - p, 1 - q), rtol=1e-9)
    np.testing.assert_array_equal(found.agree, (a > 0) == (b > 0))
    right = [(x > 0).long() == truth for x in (a, b)]
    assert found.broke is not None
    np.testing.assert_array_equal(found.broke, right[0] & ~right[1])
    np.testing.assert_allclose(found.mse, array(a - b) ** 2)
    assert found.cosine.isnan().all(), "two numbers have no angle"


def test_certain_bernoulli_variables() -> None:
    a = torch.tensor([INF, -INF, INF, 0.0, NAN])
    b = torch.tensor([INF, -INF, 0.0, INF, 0.0])
    found = compare_logits(a, b)
    assert found.kl[:4].tolist() == pytest.approx([0, 0, math.log(2), INF])
    assert math.isnan(found.kl[4])
    assert found.agree.tolist() == [True, True, False, False, False]


def test_positions_are_all_but_the_last_dimension() -> None:
    a, b = noise(3, 5, 7), noise(3, 5, 7, seed=1)
    truth = torch.arange(15) % 7
    found, flat = compare_logits(a, b, truth), compare_logits(a.reshape(15, 7), b.reshape(15, 7), truth)
    for name in ("kl", "cosine", "mse", "agree", "broke", "mended"):
        assert torch.equal(getattr(found, name), getattr(flat, name))
        assert getattr(found, name).shape == (15,)
    transposed = compare_logits(a.mT.contiguous().mT, b, truth)
    assert torch.equal(transposed.kl, found.kl)


def test_regression_has_no_distribution() -> None:
    a, b = noise(6, 4, 3), noise(6, 4, 3, seed=1)
    found = compare_logits(a, b, torch.zeros(6, 4, 3), probabilities=False)
    assert found.kl.isnan().all()
    assert found.agree.isnan().all()
    assert found.broke is None
    x, y = array(a).reshape(6, 12), array(b).reshape(6, 12)
    np.testing.assert_allclose(found.mse, ((x - y) ** 2).mean(1), rtol=1e-13)
    np.testing.assert_allclose(
        found.cosine, (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1), rtol=1e-12
    )
    single = compare_logits(a[:, 0, 0], b[:, 0, 0], probabilities=False)
    np.testing.assert_allclose(single.mse, array(a - b)[:, 0, 0] ** 2, rtol=1e-13)
    assert single.cosine.isnan().all()
    summary = summarise([found])
    assert math.isnan(summary["kl"])
    assert math.isnan(summary["top1_agree"])
    assert "broke" not in summary


@pytest.mark.parametrize("dtype", HALVES)
def test_facts_of_the_reference_leave_it_as_it_is(dtype: torch.dtype) -> None:
    a, b = (3 * noise(6, 5, seed=seed).to(dtype) for seed in (0, 1))
    before, plain = a.clone(), compare_logits(a, b)
    found = compare_logits(a, b, facts=reference_rows(a))
    assert torch.equal(a, before)
    for name in ("kl", "cosine", "mse", "agree"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name


def test_a_zero_vector_has_no_direction() -> None:
    zeros, some, masked, tiny = [0.0] * 3, [1.0, 2.0, 3.0], [-INF, 0.0, 0.0], [1e-100, 0.0, 0.0]
    a = torch.tensor([zeros, zeros, some, masked, tiny], dtype=torch.float64)
    b = torch.tensor([zeros, some, zeros, masked, tiny], dtype=torch.float64)
    for facts in (None, reference_rows(a)):
        found = compare_logits(a, b, facts=facts)
        assert found.cosine.isnan().tolist() == [True, True, True, True, False]
        assert (found.cosine[4].item(), found.mse[0].item(), found.kl[0].item()) == (1, 0, 0)


def test_ties_go_to_the_first() -> None:
    found = compare_logits(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[2.0, 3.0, 1.0]]), torch.tensor([1]))
    assert found.agree.tolist() == [True]


def test_summary_over_parts_of_unequal_size() -> None:
    a, b = noise(101, 9), noise(101, 9, seed=1)
    truth = torch.arange(101) % 9
    parts = [compare_logits(a[i:j], b[i:j], truth[i:j]) for i, j in ((0, 7), (7, 7), (7, 101))]
    kl = rel_entr(softmax(array(a), 1), softmax(array(b), 1)).sum(1)
    found = {name: float(value) for name, value in summarise(parts).items()}
    assert found["kl"] == pytest.approx(kl.mean(), rel=1e-12)
    assert found["kl_median"] == pytest.approx(np.median(kl), rel=1e-12)
    assert found["kl_p99"] == pytest.approx(np.quantile(kl, 0.99), rel=1e-12)
    assert found["mse"] == pytest.approx(((array(a) - array(b)) ** 2).mean(), rel=1e-12)
    assert found["top1_agree"] == pytest.approx((array(a).argmax(1) == array(b).argmax(1)).mean())
    right = [array(x).argmax(1) == truth.numpy() for x in (a, b)]
    assert found["broke"] == pytest.approx((right[0] & ~right[1]).mean())


def test_infinities_in_a_summary() -> None:
    kl = torch.tensor([0.0, 1.0, INF, INF, INF], dtype=torch.float64)
    ones = torch.ones(5, dtype=torch.float64)
    found = summarise([Comparison(kl, ones, ones, ones.bool())])
    assert [float(found[name]) for name in ("kl", "kl_median", "kl_p99")] == [INF, INF, INF]


def test_nothing_to_compare() -> None:
    empty = summarise([compare_logits(torch.zeros(0, 5), torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))])
    assert all(math.isnan(value) for value in empty.values())
    with pytest.raises(ValueError, match="at least one batch"):
        summarise([])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\] cannot be compared with \[2, 4\]"):
        compare_logits(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="3 targets for 2 positions"):
        compare_logits(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))


def test_the_callers_logits_and_modes_do_not_matter() -> None:
    a, b = noise(4, 6).float(), noise(4, 6, seed=1).float().requires_grad_()
    kept = a.clone(), b.detach().clone()
    plain = compare_logits(a, b)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        inside = compare_logits(a.clone(), b.clone())
    assert torch.equal(plain.kl, inside.kl)
    assert not plain.kl.requires_grad
    assert torch.equal(a, kept[0])
    assert torch.equal(b, kept[1])


# large logits, compared in one fused pass


@pytest.fixture
def always_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_divergence, "FUSED_FROM", 1)


def fused(a: Tensor, b: Tensor, targets: Tensor | None = None, rows: Tensor | None = None) -> Comparison:
    facts = row_facts(a)
    assert facts is not None
    return compare_logits(a, b, targets, rows=rows, facts=facts)


@pytest.mark.usefixtures("always_fused")
@pytest.mark.parametrize("dtype", FUSED)
@pytest.mark.parametrize("size", [1e-5, 1e-3, 0.1, 1.0, 5.0])
def test_the_fused_pass_against_float64(dtype: torch.dtype, size: float) -> None:
    a = (3 * noise(31, 3001)).to(dtype)
    b = (a.double() + size * noise(31, 3001, seed=1)).to(dtype)
    targets = torch.arange(31) % 7
    found, plain = fused(a, b, targets), compare_logits(a, b, targets)
    np.testing.assert_allclose(found.kl, plain.kl, rtol=1e-6)
    np.testing.assert_allclose(found.mse, plain.mse, rtol=1e-6)
    np.testing.assert_allclose(1 - found.cosine, 1 - plain.cosine, rtol=1e-5, atol=1e-15)
    for name in ("agree", "broke", "mended"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), name
    # what the loss of a variant grows by, which is far smaller than the loss
    own = fused(a, a.clone()).log_total
    assert own is not None
    assert found.log_total is not None
    np.testing.assert_allclose(own, a.double().logsumexp(1), atol=1e-7)
    known = ~found.log_total.isnan()
    assert known.sum() > (20 if size <= 1 else -1), "rows that differ so much are compared in float64"
    grown, exact = (found.log_total - own)[known], (b.double().logsumexp(1) - a.double().logsumexp(1))[known]
    np.testing.assert_allclose(grown, exact, rtol=1e-6, atol=2e-7 * min(size, 1.0))


@pytest.mark.usefixtures("always_fused")
@pytest.mark.parametrize("size", [1e-3, 0.01, 0.1, 0.3, 3.0])
def test_every_number_of_terms_and_whether_exponentials_are_kept(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    a = 3 * noise(7, 2048).float()
    b = a + size * (2 * torch.rand(7, 2048, generator=torch.Generator().manual_seed(1)) - 1)
    found = fused(a, b)
    monkeypatch.setattr(fused_divergence, "KEPT_EXPONENTIALS", 0)
    again = fused(a, b)
    assert torch.equal(found.kl, again.kl)
    np.testing.assert_allclose(found.kl, compare_logits(a, b).kl, rtol=1e-6)


@pytest.mark.usefixtures("always_fused")
def test_the_fused_pass_is_exact_for_equal_logits() -> None:
    a = 3 * noise(9, 4097).float()
    found = fused(a, a.clone(), torch.zeros(9, dtype=torch.long))
    assert found.kl.tolist() == [0] * 9
    assert found.mse.tolist() == [0] * 9
    assert found.cosine.tolist() == [1] * 9
    assert bool(found.agree.all())


@pytest.mark.usefixtures("always_fused")
def test_zeros_in_the_fused_pass_have_no_direction() -> None:
    a = noise(4, 500).float()
    a[1] = 0
    found = fused(a, a.clone())
    assert found.cosine.isnan().tolist() == [False, True, False, False]
    assert found.kl.tolist() == [0] * 4


@pytest.mark.usefixtures("always_fused")
def test_rows_that_the_fused_pass_cannot_do() -> None:
    """A shift of all logits, which is no change; masked, infinite, NaN, far away, tiny, all zero."""
    a = noise(9, 500).float()
    b = a + 1e-3 * noise(9, 500, seed=1).float()
    b[1] = a[1] + 7.0
    b[2] = a[2] + 0.25 + 1e-4 * noise(500, seed=2).float()
    a[3, 100:] = b[3, 100:] = -INF
    b[4, 7] = NAN
    b[5, 3] = INF
    b[6] = 400 * noise(500, seed=3).float()
    a[7] = 0
    b[8] = a[8] + 1e-30
    found, plain = fused(a, b), compare_logits(a, b)
    for name in ("kl", "mse", "cosine"):
        np.testing.assert_allclose(getattr(found, name), getattr(plain, name), rtol=2e-6, err_msg=name)
    assert found.kl[1] < 1e-9
    assert torch.equal(found.agree, plain.agree)


@pytest.mark.usefixtures("always_fused")
@pytest.mark.parametrize("dtype", FUSED)
@pytest.mark.parametrize("drop", [1.0, 4.0, 8.0, 16.0, 30.0])
def test_confident_rows_whose_likely_class_becomes_unlikely(dtype: torch.dtype, drop: float) -> None:
    """Σ p e^Δ is then a small rest of large sums; and norms that are far apart, for the cosine."""
    a = (noise(40, 300) * torch.logspace(-4, 2, 40, dtype=torch.float64)[:, None]).to(dtype)
    a[:, 7] = (a[:, 7].double() + 20).to(dtype)
    b = a.clone()
    b[:, 7] = (a[:, 7].double() - drop).to(dtype)
    b[::4] *= 1e-3
    found, plain = fused(a, b), compare_logits(a, b)
    np.testing.assert_allclose(found.kl, plain.kl, rtol=5e-6)
    np.testing.assert_allclose(found.cosine, plain.cosine, atol=1e-6)


@pytest.mark.usefixtures("always_fused")
def test_the_first_of_equal_largest_logits_is_the_answer() -> None:
    a = torch.zeros(3, 300)
    b = a.clone()
    b[1, 5] = b[1, 200] = 1.0
    b[2, 200] = 1.0
    assert fused(a, b, torch.tensor([0, 5, 0])).agree.tolist() == [True, False, False]
    assert fused(a, b, torch.tensor([0, 5, 0])).mended.tolist() == [False, True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize("large", [True, False])
def test_only_the_rows_that_count(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(fused_divergence, "FUSED_FROM", 1)
    a, b = noise(12, 400).float(), noise(12, 400, seed=1).float()
    a[3], b[4] = NAN, INF  # positions that are padding may hold anything
    rows, targets = torch.tensor([0, 2, 5, 11]), torch.tensor([1, 2, 3, 4])
    found = compare_logits(a, b, targets, rows=rows, facts=row_facts(a))
    expected = compare_logits(a[rows], b[rows], targets)
    for name in ("kl", "cosine", "mse", "agree", "broke", "mended"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6)


def test_small_logits_are_compared_in_float64() -> None:
    assert row_facts(noise(10, 10).float()) is None
    assert row_facts(noise(10, 10)) is None


@pytest.mark.parametrize("length", [3, 512, 1024, 1500, 5003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_largest_is_that_of_argmax(length: int, dtype: torch.dtype) -> None:
    logits = noise(40, length).to(dtype)
    logits[5] = 0
    logits[6, -1] = logits[7, 0] = INF
    logits[8, length // 2 :] = 9
    logits[9] = -INF
    expected = logits.float().numpy().argmax(1)
    assert first_largest(logits).tolist() == expected.tolist()
    assert first_largest(logits.t().contiguous().t()).tolist() == expected.tolist()
    logits[3, length // 3] = NAN
    assert first_largest(logits)[3] == -1


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [None, torch.tensor([2, 0])])
def test_rows_of_the_reference_leave_it_as_it_is(kind: torch.dtype, rows: Tensor | None) -> None:
    a, b = torch.randn(2, 3, 5, dtype=kind, generator=torch.Generator().manual_seed(0))
    before = a.clone()
    facts = divergence.reference_rows(a, rows)
    assert torch.equal(a, before)
    with_facts, without = (compare_logits(a, b, rows=rows, facts=each) for each in (facts, None))
    for name in ("kl", "cosine", "mse", "agree"):
        assert torch.equal(getattr(with_facts, name), getattr(without, name)), name
