"""Part of an update undone in place: the right entries, and everything back bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope import native
from learnscope.model.updates import variants
from learnscope.model.updates.variants import Reverting
from learnscope.tensor import kernels
from learnscope.tensor.updates import masks
from learnscope.tensor.updates.masks import KEEP_ALL, Rule

SHAPES = {"a": (70, 31), "b": (5,), "scalar": (), "empty": (0, 3), "c": (300, 12)}


@pytest.fixture(autouse=True, params=["plain", "compiled", "kernel"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Blocks that cut through tensors, and all ways of exchanging."""
    monkeypatch.setattr(masks, "BLOCK", 1 << 8)
    if request.param == "kernel" and native.kernels is None:
        pytest.skip("no compiled kernels here")
    if request.param != "kernel":
        monkeypatch.setattr(variants, "host_exchange", lambda *_: None)
    monkeypatch.setattr(variants, "CHUNK", 1 << 9)
    if request.param == "compiled":
        monkeypatch.setattr(variants, "wants_compiler", lambda *_: kernels.compiler_available())
        monkeypatch.setattr(variants, "COMPILED_FROM", 1 << 8)
        monkeypatch.setattr(variants, "COMPILED_PART", 1 << 11)
    yield request.param
    assert not kernels._broken


def weights(dtype: torch.dtype = torch.float32, kept: torch.dtype | None = None) -> tuple[dict[str, Tensor], ...]:
    """New weights, an older copy, and both once more for comparison. Changes of many sizes, some of them zero."""
    draw = torch.Generator().manual_seed(0)
    new, old = {}, {}
    for name, shape in SHAPES.items():
        before = torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
        size = 10.0 ** (-8 * torch.rand(shape, generator=draw, dtype=torch.float64))
        step = torch.randn(shape, generator=draw, dtype=torch.float64) * size
        step[torch.rand(shape, generator=draw) < 0.2] = 0
        new[name] = (before.double() + step).to(dtype)
        old[name] = before.to(kept or dtype)
    return new, old, {k: v.clone() for k, v in new.items()}, {k: v.clone() for k, v in old.items()}


def same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return all(left[name].numpy(force=True).tobytes() == right[name].numpy(force=True).tobytes() for name in left)


def as_bytes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """bfloat16 has no NumPy twin: compare its bits."""
    return {name: t.contiguous().view(torch.int16) if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}


DTYPES = [
    (torch.float32, None),
    (torch.float64, None),
    (torch.bfloat16, None),
    (torch.float16, None),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float64),
    (torch.float32, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float8_e4m3fn),
    (torch.bfloat16, torch.float16),
]


@pytest.mark.parametrize(("dtype", "kept"), DTYPES)
@pytest.mark.parametrize("threshold", [0.0, 1e-5, 1e-2, 1e9])
def test_small_changes_are_undone_and_come_back(dtype: torch.dtype, kept: torch.dtype | None, threshold: float) -> None:
    new, old, was_new, was_old = weights(dtype, kept)
    with Reverting(new, old) as model:
        model.apply(Rule(threshold))
        for name, weight in new.items():
            before, after = was_old[name].double(), was_new[name].double()
            # the difference as float32 sees it, unless something is float64
            wide = torch.float64 if torch.float64 in (dtype, was_old[name].dtype) else torch.float32
            size = (was_new[name].to(wide) - was_old[name].to(wide)).abs()
            expected = torch.where(size <= threshold, before, after).to(dtype)
            assert torch.equal(weight, expected), name
    assert same_bits(as_bytes(new), as_bytes(was_new))
    assert all(
        torch.equal(old[name].view(torch.int8), copy.view(torch.int8)) for name, copy in was_old.items() if copy.ndim
    )


def test_a_narrower_copy_says_what_it_takes_and_an_exact_one_takes_nothing() -> None:
    new, old, *_ = weights(torch.float32, torch.float16)
    assert Reverting(new, old).extra_bytes == sum(w.nbytes for w in new.values())
    new, old, *_ = weights(torch.bfloat16, torch.float32)
    assert Reverting(new, old).extra_bytes == 0


def test_from_rule_to_rule_the_weights_are_those_of_the_last() -> None:
    new, old, was_new, was_old = weights()
    with Reverting(new, old) as model:
        total, changed = model.entries, model.count_changed()
        random = model.order.keep([total // 2, total // 10])
        of_changed = model.keep_of_changed([changed // 2], changed)
        for rule in (Rule(1e-3), random[0], Rule(1e-6), of_changed[0], random[1]):
            model.apply(rule)
        moved = [name for name in new if not torch.equal(new[name], was_new[name])]
        kept = sum(int(((new[n] == was_new[n]) & (was_new[n] != was_old[n])).sum()) for n in new)
    assert moved
    assert 0.04 * changed < kept < 0.2 * changed
    assert same_bits(new, was_new)
    assert same_bits(old, was_old)


def test_keeping_everything_reverts_nothing() -> None:
    new, old, was_new, was_old = weights()
    with Reverting(new, old) as model:
        for rule in (KEEP_ALL, Rule(1e9), KEEP_ALL):
            model.apply(rule)
            assert same_bits(new, was_old if rule.threshold > 0 else was_new)
        assert same_bits(old, was_old)


def test_random_masks_keep_exactly_as_many_as_asked() -> None:
    new, old, was_new, was_old = weights()
    changed = int(sum((was_new[n] != was_old[n]).sum() for n in new))
    with Reverting(new, old, seed=4) as model:
        assert model.count_changed() == changed
        for rule, count in zip(model.keep_of_changed([7, changed // 3], changed), [7, changed // 3], strict=True):
            model.apply(rule)
            kept = sum(int(((new[n] == was_new[n]) & (was_new[n] != was_old[n])).sum()) for n in new)
            assert kept == count


def test_nan_infinity_and_signed_zeros_come_back_bit_for_bit() -> None:
    odd = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 3.0, 2.0]
    before = [1.0, 2.0, float("inf"), -0.0, 0.0, 0.0, float("nan"), -float("inf")]
    for dtype in (torch.float32, torch.bfloat16):
        new, old = {"w": torch.tensor(odd, dtype=dtype)}, {"w": torch.tensor(before)}
        was_new, was_old = new["w"].clone(), old["w"].clone()
        with Reverting(new, old) as model:
            for rule in (Rule(0.0), Rule(1e30), *model.order.keep([0, 4])):
                model.apply(rule)
                # a NaN is no small change: it stays
                assert new["w"][0].isnan()
        assert new["w"].view(torch.int8).tolist() == was_new.view(torch.int8).tolist()
        assert old["w"].view(torch.int8).tolist() == was_old.view(torch.int8).tolist()


def test_weights_that_are_not_contiguous() -> None:
    base, other = torch.randn(40, 60), torch.randn(60, 40)
    new, old = {"t": base.t(), "u": base[:, ::2]}, {"t": other.clone(), "u": base[:, ::2].clone() + 1}
    was = {name: tensor.clone() for name, tensor in new.items()}
    with Reverting({"t": new["t"]}, {"t": old["t"]}) as model:
        model.apply(Rule(1e9))
        assert torch.equal(new["t"], other)
    assert torch.equal(new["t"], was["t"])
    with Reverting({"u": new["u"]}, {"u": old["u"]}) as model:
        model.apply(Rule(1e9))
        assert torch.equal(new["u"], was["u"] + 1)
    assert torch.equal(new["u"], was["u"])


def test_an_error_between_parts_leaves_everything_as_it_was(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after each number of parts in turn, in the middle of going from one rule to the next."""
    if form == "kernel":
        pytest.skip("the kernel goes through all parts in one call")
    genuine, calls, stop = Reverting._exchange, 0, -1

    def failing(self: Reverting, *args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise RuntimeError("stopped")
        genuine(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Reverting, "_exchange", failing)

    def through_all_rules(new: dict[str, Tensor], old: dict[str, Tensor]) -> None:
        with Reverting(new, old) as model:
            random = model.order.keep([3000, 1000])
            for rule in (Rule(1e-5), Rule(1e-2), *random, Rule(1e-3)):
                model.apply(rule)

    through_all_rules(*weights()[:2])
    total = calls
    assert total > 30
    for number in range(1, total * 5 // 6 + 1):  # the last sixth is restoring
        new, old, was_new, was_old = weights()
        calls, stop = 0, number
        with pytest.raises(RuntimeError, match="stopped"):
            through_all_rules(new, old)
        assert same_bits(new, was_new), stop
        assert same_bits(old, was_old), stop


def test_blocks_are_masked_as_numpy_would() -> None:
    new, old, was_new, was_old = weights()
    flat_new = np.concatenate([was_new[n].numpy().ravel() for n in new])
    flat_old = np.concatenate([was_old[n].numpy().ravel() for n in new])
    found = np.concatenate([mask.copy() for mask in Reverting(new, old)._changed()])
    assert (found == (flat_new.view(np.int32) != flat_old.view(np.int32))).all()


@pytest.mark.parametrize(("dtype", "kept"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float64)])
def test_old_values_that_a_weight_cannot_hold_are_rounded_and_the_weights_come_back(
    dtype: torch.dtype, kept: torch.dtype
) -> None:
    """A model that became bfloat16 since its weights were kept as float32."""
    exact, old, *_ = weights(kept)
    new = {name: weight.to(dtype) for name, weight in exact.items()}
    was_new, was_old = ({n: t.clone() for n, t in each.items()} for each in (new, old))
    with Reverting(new, old) as model:
        assert model.rounded
        for rule in (Rule(1e-3), Rule(1e-5), model.order.keep([50])[0], Rule(1e-2)):
            model.apply(rule)
        for name, weight in new.items():
            rounded = was_old[name].to(dtype)
            size = (was_new[name].double() - rounded.double()).abs()
            assert torch.equal(weight, torch.where(size <= 1e-2, rounded, was_new[name])), name
    assert same_bits(as_bytes(new), as_bytes(was_new))
    assert same_bits(old, was_old)


def test_a_weight_under_two_names_is_exchanged_once() -> None:
    """`head.weight.data = embedding.weight.data` makes two parameters of one memory."""
    new, old, was_new, _ = weights()
    new["again"], old["again"] = new["a"].view(new["a"].shape), old["a"].clone()
    with Reverting(new, old) as model:
        assert "again" not in model.old
        for rule in (Rule(1e-3), *model.order.keep([10]), Rule(1e-6)):
            model.apply(rule)
        assert not torch.equal(new["a"], was_new["a"])
    assert same_bits({name: new[name] for name in was_new}, was_new)


def test_weights_that_overlap_are_refused_by_name() -> None:
    memory = torch.zeros(30)
    apart = {"a": memory[:12], "b": memory[12:24], "empty": memory[5:5]}
    assert Reverting(apart, {name: t.clone() for name, t in apart.items()}).entries == 24
    overlapping = {"a": memory[:12], "b": memory[10:22]}
    with pytest.raises(ValueError, match="a and b share part of their memory"):
        Reverting(overlapping, {name: t.clone() for name, t in overlapping.items()})
    with pytest.raises(ValueError, match="entries of wide share memory"):
        Reverting({"wide": torch.zeros(1).expand(4)}, {"wide": torch.zeros(4)})
