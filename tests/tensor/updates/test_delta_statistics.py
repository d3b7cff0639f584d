"""`delta_statistics` against NumPy in float64, for both forms and every awkward input."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compiler import needs_compiler
from learnscope.tensor import kernels, rows
from learnscope.tensor.updates import fold
from learnscope.tensor.updates.delta import DeltaTable, Form, delta_statistics

FORMS: list[Form] = ["auto", "chunked", "compiled"]
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_numpy(tensor: Tensor) -> Any:
    tensor = tensor.detach().cpu()
    return (tensor if tensor.dtype is torch.float64 else tensor.float()).contiguous().numpy()


def reference(new: Tensor, old: Tensor, thresholds: list[float]) -> dict[str, Any]:
    a, b = as_numpy(new), as_numpy(old)
    with np.errstate(all="ignore"):
        change = (a - b).astype(np.float64)
        size = np.abs(change)
        if new.dtype == old.dtype:
            stored = [t.detach().contiguous().view(INTEGER[t.dtype.itemsize]).numpy() for t in (new, old)]
            bits = float((stored[0] != stored[1]).sum())
        elif torch.promote_types(new.dtype, old.dtype) == old.dtype:
            kind = {4: np.int32, 8: np.int64}[old.dtype.itemsize]
            wide = a.astype(b.dtype)
            bits = float((wide.view(kind) != b.view(kind)).sum()) if a.ndim else float(wide.tobytes() != b.tobytes())
        else:
            bits = math.nan
        return {
            "entries": a.size,
            "total": math.fsum(change.ravel()) if np.isfinite(change).all() else change.sum(),
            "l1": size.sum(),
            "sum_squares": (change**2).sum(),
            "largest": size.max() if size.size else 0.0,
            "old_sum_squares": (b.astype(np.float64) ** 2).sum(),
            "sign_flips": (np.sign(a) * np.sign(b) == -1).sum(),
            "bits_changed": bits,
            "nan": np.isnan(change).sum(),
            "inf": np.isinf(change).sum(),
            "within": [(size <= t).sum() for t in thresholds],
        }


EXACT = ("entries", "largest", "sign_flips", "bits_changed", "nan", "inf", "within")
# a norm is the square root of the latter two, which halves the relative error
ALLOWED = {"l1": 1e-6, "sum_squares": 2e-6, "old_sum_squares": 2e-6}
NORMS = tuple(ALLOWED)


def check(table: DeltaTable, new: list[Tensor], old: list[Tensor], thresholds: list[float]) -> None:
    for index, pair in enumerate(zip(new, old, strict=True)):
        expected = reference(*pair, thresholds)
        for name in EXACT:
            got = getattr(table, name)[index].numpy()
            np.testing.assert_array_equal(got, expected[name], err_msg=f"{name} of {index}")
        for name in NORMS:
            got = float(getattr(table, name)[index])
            assert got == pytest.approx(float(expected[name]), rel=ALLOWED[name], abs=0, nan_ok=True), name
        l1 = float(expected["l1"])
        slack = ALLOWED["l1"] * l1 if math.isfinite(l1) else 0.0
        assert float(table.total[index]) == pytest.approx(expected["total"], rel=1e-6, abs=slack, nan_ok=True)


def pair(
    *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, step: float = 1e-3, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    new = old + torch.randn(shape, generator=generator, dtype=torch.float64) * step * scale
    return new.to(dtype), old.to(dtype)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    chosen: Form = request.param
    if chosen == "compiled":  # where anything compiles, a kernel that does not must fail
        needs_compiler()
    return chosen


CUTS = [1e-4, 1e-3, 0.1]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def in_both_forms(name: str, values: list[Any], *quick: Any) -> Any:
    """Each value in both forms. Compiled, each needs a kernel of its own, which takes seconds: the `quick` ones."""
    marks = {form: () if form == "chunked" else pytest.mark.soak for form in FORMS}
    cases = [
        pytest.param(form, value, marks=() if value in quick else marks[form], id=f"{form}-{value}")
        for value in values
        for form in FORMS
    ]
    return pytest.mark.parametrize(("form", name), cases, indirect=["form"])


def run(new: list[Tensor], old: list[Tensor], form: Form, cuts: list[float] = CUTS) -> DeltaTable:
    table = delta_statistics(new, old, cuts, form=form)
    check(table, new, old, cuts)
    return table


@in_both_forms("dtype", DTYPES, torch.float32, torch.bfloat16, torch.float64)
def test_every_dtype_and_shape(dtype: torch.dtype, form: Form) -> None:
    shapes = [(300, 700), (5,), (0,), (), (3, 0, 2), (100, 513), (64, 64, 32), (1,)]
    pairs = [pair(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    table = run([new for new, _ in pairs], [old for _, old in pairs], form)
    assert table.l1.dtype is torch.float64
    assert table.within.shape == (len(shapes), len(CUTS))


@pytest.mark.parametrize("scale", [1e-40, 1e-25, 1e-18, 1e-10, 1e10, 1e30])
def test_norms_hold_at_every_magnitude(scale: float, form: Form) -> None:
    new, old = pair(70_000, scale=scale, step=0.5)
    small, other = pair(777, scale=scale, step=0.5)
    table = run([new, small], [old, other], form)
    assert (table.sum_squares > 0).all()
    assert table.sum_squares.isfinite().all()


def test_magnitudes_mixed_within_one_tensor(form: Form) -> None:
    new, old = pair(200, 512, step=0.5)
    scale = torch.logspace(-38, 30, 200)[:, None]
    run([new * scale], [old * scale], form)
    large, small = pair(100_000, scale=1e8, step=1e-20)
    run([large], [small], form)


def test_tiny_changes_of_ordinary_weights(form: Form) -> None:
    old = torch.zeros(100 * 512)
    old[::100] = 1.0
    new = torch.where(old == 0, torch.tensor(1e-25), old)
    table = run([new, new[:600]], [old, old[:600]], form)
    assert (table.sum_squares > 0).all()


def allow_equal_steps(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rows of one number may be off: code without vectors adds the 512 entries of a row one after the other, which
    may round 511 times by half of 2⁻²³ in the same direction; with 8 or 16 lanes it is 64 or 32 times."""
    if form == "compiled" and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        monkeypatch.setitem(ALLOWED, "l1", 511 * 2.0**-24)
        for name in ("sum_squares", "old_sum_squares"):
            monkeypatch.setitem(ALLOWED, name, 512 * 2.0**-24)  # and once for the square


def test_equal_steps_do_not_add_up_a_rounding_error(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    # each addition of the same number rounds the same way: the worst case for a running sum
    steps = [0.1, 1e-3, 3e-4, 0.7, 1 / 3]
    new = [torch.full((90_000,), step) for step in steps]
    allow_equal_steps(form, monkeypatch)
    table = run(new, [torch.zeros(90_000) for _ in steps], form)
    assert (table.sign_flips == 0).all()


def test_a_long_sum_keeps_its_digits() -> None:
    new, old = torch.full((1,), 1e-3).expand(4_000_000), torch.zeros(1).expand(4_000_000)
    l1 = float(delta_statistics([new], [old], form="chunked").l1[0])
    assert l1 == pytest.approx(4e6 * float(torch.tensor(1e-3).double()), rel=1e-7)


SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-45, 1e-38, -2e-38, 3.4e38, -3.4e38, 1.0, -1.0]


def test_every_combination_of_special_values(form: Form) -> None:
    values = torch.tensor(SPECIAL)
    old = values.repeat(len(SPECIAL))
    new = values.repeat_interleave(len(SPECIAL))
    # once packed, once in place with the special values scattered among ordinary ones
    base_new, base_old = pair(40_000)
    base_new[::211][: len(new)] = new
    base_old[::211][: len(old)] = old
    each = [tensor.reshape(1) for tensor in new], [tensor.reshape(1) for tensor in old]
    run([new, base_new, *each[0]], [old, base_old, *each[1]], form)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_awkward_inputs(data: st.DataObject) -> None:
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])
    ordinary = st.floats(width=32, allow_nan=False)
    new, old = [], []
    for _ in range(data.draw(st.integers(0, 4))):
        shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
        count = math.prod(shape)
        kinds = [data.draw(dtypes) for _ in range(2)]
        # which bits a NaN has after it is converted is the processor's affair, and differs by its place in a tensor
        special = SPECIAL if kinds[0] is kinds[1] else [value for value in SPECIAL if not math.isnan(value)]
        entry = st.lists(ordinary | st.sampled_from(special), min_size=count, max_size=count)
        tensors = [torch.tensor(data.draw(entry), dtype=torch.float64).to(kind).reshape(shape) for kind in kinds]
        if data.draw(st.booleans()):
            tensors = [
                tensor.mT if tensor.ndim > 1 else tensor.flip(0) if tensor.ndim else tensor for tensor in tensors
            ]
        new.append(tensors[0])
        old.append(tensors[1])
    cuts = data.draw(st.lists(st.floats(0, 1e30), max_size=3))
    run(new, old, "chunked", cuts)
    run(new, old, "auto", cuts)


def test_mixed_dtypes() -> None:
    new, old = pair(50_000, step=1e-2)
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    pairs = [(new.to(a), old.to(b)) for a in kinds for b in kinds]
    table = run([a for a, _ in pairs], [b for _, b in pairs], "chunked")
    known = ~table.bits_changed.isnan()
    assert known.view(4, 4).tolist() == [
        [True, False, False, True],
        [True, True, False, True],
        [True, False, True, True],
        [False, False, False, True],
    ]


def test_widened_copy_of_the_same_values_has_not_changed() -> None:
    new = pair(60_000, dtype=torch.bfloat16)[0]
    table = delta_statistics([new], [new.float()], form="chunked")
    assert table.bits_changed.tolist() == [0.0]


def test_layouts_that_cannot_be_viewed(form: Form) -> None:
    new, old = pair(600, 400)
    wide_new, wide_old = pair(2000, 800, seed=1)
    row_new, row_old = pair(1, 300, seed=2)
    cases = [
        (new.T, old.T),
        (new.T, old.T.contiguous()),
        (wide_new[::2, ::3], wide_old[::2, ::3]),
        (wide_new[:, 5:700], wide_old[:, 5:700]),
        (row_new.expand(5000, 300), row_old.expand(5000, 300)),
        (new.view(20, 30, 400).transpose(0, 2), old.view(20, 30, 400).transpose(0, 2)),
        (new[3:, 0], old[3:, 0]),
    ]
    run([a for a, _ in cases], [b for _, b in cases], form)


def test_one_leading_index_larger_than_a_piece() -> None:
    new, old = pair(2, 1100, 1200)
    run([new.transpose(1, 2)], [old.transpose(1, 2).contiguous()], "chunked")


def test_thousands_of_tiny_tensors() -> None:
    new, old = pair(3000, 7)
    run(list(new), list(old), "chunked")


def test_no_tensors() -> None:
    table = delta_statistics([], [], [0.1])
    assert table.entries.shape == (0,)
    assert table.within.shape == (0, 1)


@pytest.mark.parametrize("size", [100, 70_000])
def test_thresholds_are_compared_without_rounding_up(size: int, form: Form) -> None:
    for threshold in (0.1, 0.3, 1e-5, 1e-40, 1e300, 2.0**-149, math.inf):
        nearest = np.float32(min(threshold, 3e38))
        around = [np.nextafter(nearest, np.float32(0)), nearest, np.nextafter(nearest, np.float32(np.inf))]
        new = torch.from_numpy(np.resize(np.array(around, dtype=np.float32), size))
        expected = float((new.double() <= threshold).sum())
        table = delta_statistics([new], [torch.zeros(size)], [threshold, -1.0, math.nan], form=form)
        assert table.within.tolist() == [[expected, 0.0, 0.0]]


def test_padding_is_within_no_threshold() -> None:
    table = delta_statistics([torch.ones(3), torch.ones(40_001)], [torch.zeros(3), torch.zeros(40_001)], [0.0, 0.5])
    assert table.within.tolist() == [[0, 0], [0, 0]]


def test_sign_flips_of_subnormals(form: Form) -> None:
    tiny = 1e-45
    new = torch.tensor([tiny, -tiny, tiny, 0.0, -0.0, tiny, -1.0]).repeat(10_000)
    old = torch.tensor([-tiny, tiny, tiny, -tiny, tiny, -0.0, tiny]).repeat(10_000)
    table = run([new, new[:7]], [old, old[:7]], form)
    assert table.sign_flips.tolist() == [30_000, 3]


def test_a_nan_with_the_same_bits_has_not_changed(form: Form) -> None:
    new = torch.full((40_000,), math.nan)
    other = new.view(torch.int32).clone()
    other[0] += 1
    table = run([new, new], [new.clone(), other.view(torch.float32)], form)
    assert table.bits_changed.tolist() == [0.0, 1.0]
    assert table.nan.tolist() == [40_000.0, 40_000.0]


def test_zeros_of_two_signs_are_stored_differently(form: Form) -> None:
    new, old = torch.zeros(40_000), -torch.zeros(40_000)
    table = run([new], [old], form)
    assert table.bits_changed.tolist() == [40_000.0]
    assert table.l1.tolist() == [0.0]


def columns(table: DeltaTable) -> list[list[object]]:
    return [getattr(table, name).tolist() for name in DeltaTable.__dataclass_fields__]


def test_surroundings_change_nothing(form: Form) -> None:
    new, old = pair(40_000)
    new.requires_grad_()
    plain = columns(delta_statistics([new, new[:9]], [old, old[:9]], CUTS, form=form))

    def again() -> list[list[object]]:
        return columns(delta_statistics([new, new[:9]], [old, old[:9]], CUTS, form=form))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert again() == plain
    with torch.inference_mode():
        assert again() == plain
        copy = new.clone()
    assert columns(delta_statistics([copy, copy[:9]], [old, old[:9]], CUTS, form=form)) == plain
    with torch.device("meta"):
        assert again() == plain
    torch.set_default_dtype(torch.float64)
    try:
        assert again() == plain
    finally:
        torch.set_default_dtype(torch.float32)


def test_reads_only_and_draws_nothing(form: Form) -> None:
    new, old = pair(40_000)
    new[3] = math.nan
    before = new.clone(), old.clone(), torch.get_rng_state()
    versions = new._version, old._version
    delta_statistics([new, new[:5], new.view(200, 200).T], [old, old[:5], old.view(200, 200)], CUTS, form=form)
    assert torch.equal(new, before[0]) or torch.equal(new.nan_to_num(), before[0].nan_to_num())
    assert torch.equal(old, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert (new._version, old._version) == versions


def test_other_threshold_values_compile_nothing_new(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = pair(40_000)
    run([new], [old], form)
    with torch.compiler.set_stance("fail_on_recompile"):
        run([new, new[:33_000]], [old, old[:33_000]], form, [5e-4, 0.0, 7.0])
    assert not kernels._broken


def test_a_failing_compiler_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> object:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(kernels, "_broken", set())
    monkeypatch.setattr(kernels, "_compiled", broken)
    new, old = pair(40_000)
    cuts = torch.tensor([0.1])
    new_rows, old_rows = (tensor[: 64 * rows.WIDTH].view(-1, rows.WIDTH) for tensor in (new, old))
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler found"):
        assert kernels.compiled_partials(new_rows, old_rows, cuts) is None
    monkeypatch.setattr(kernels, "compiler_available", lambda: True)
    run([new], [old], "compiled")


def test_auto_depends_on_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compiler_available", lambda: True)
    assert not kernels.wants_compiler(kernels.COMPILE_FROM - 1, "auto")
    assert kernels.wants_compiler(kernels.COMPILE_FROM, "auto")
    with pytest.raises(ValueError, match="form is"):
        kernels.wants_compiler(5, "fast")  # type: ignore[arg-type]


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(TypeError, match=r"tensor 1 is torch\.int64"):
        delta_statistics([torch.ones(2), torch.ones(2, dtype=torch.int64)], [torch.ones(2)] * 2)
    with pytest.raises(TypeError, match=r"torch\.bool"):
        delta_statistics([torch.ones(2)], [torch.ones(2, dtype=torch.bool)])
    with pytest.raises(ValueError, match=r"tensor 1: new has shape \(2,\), old has \(3, 2\)"):
        delta_statistics([torch.ones(2)] * 2, [torch.ones(2), torch.ones(3, 2)])
    with pytest.raises(ValueError, match="1 new tensors for 2 old ones"):
        delta_statistics([torch.ones(2)], [torch.ones(2)] * 2)


def test_exact_partials_agree_with_the_fast_ones() -> None:
    new, old = pair(64 * rows.WIDTH)
    matrices = new.view(-1, rows.WIDTH), old.view(-1, rows.WIDTH)
    cuts = torch.tensor(CUTS)
    fast = kernels.ChunkedPass(torch.float32, new.device)(*matrices, cuts)
    slow = fold.exact_partials(*matrices, cuts.double())
    torch.testing.assert_close(fast.double(), slow[:-2], rtol=1e-6, atol=1e-6)


NONE: list[float] = []
ODD, EVEN = [1e-3, 1e-3, 1e-4, 0.0, 1.0], [0.1, math.nan, -1.0, math.inf]


@in_both_forms("cuts", [NONE, [0.1], [0.1, 1e-4], ODD, EVEN], NONE, ODD, EVEN)
def test_thresholds_in_any_order_and_number(form: Form, cuts: list[float]) -> None:
    """Two counts share one sum inside, for which thresholds are sorted."""
    new, old = pair(40_000)
    new[:600] = old[:600]
    run([new, new[:70]], [old, old[:70]], form, cuts)


def test_counts_of_a_full_row_are_exact(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry of a row flips, differs and is within: the largest counts that share one sum."""
    allow_equal_steps(form, monkeypatch)
    new, old = torch.full((64 * rows.WIDTH,), 1e-3), torch.full((64 * rows.WIDTH,), -1e-3)
    table = run([new], [old], form, [2.5e-3, 3e-3, 1e-3])
    assert table.sign_flips.tolist() == table.bits_changed.tolist() == [64 * rows.WIDTH]
    assert table.within.tolist() == [[64 * rows.WIDTH, 64 * rows.WIDTH, 0]]


def test_one_suspect_row_among_many_is_read_again(form: Form) -> None:
    """The totals of a batch are used only if no row of it needs float64."""
    for value in (math.nan, math.inf, 1e-30, 3e38):
        new, old = pair(40_960)
        new[512:1024] = old[512:1024] = 0.0
        new[700] = value
        run([new], [old], form)
