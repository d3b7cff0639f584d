"""The kernels for what a loss and a model are given: against torch and NumPy in float64, in every build."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from learnscope import native
from learnscope.tensor.features import inputs, outputs
from learnscope.tensor.outputs import objective
from learnscope.tensor.outputs.places import token_first_places
from native_builds import builds, needed

NEAR = np.array([objective.NEAR])


def logits(rows: int, width: int, kind: str, dtype: Any) -> np.ndarray:
    rng = np.random.default_rng(rows * width)
    values = 3 * rng.normal(size=(rows, width))
    if kind == "awkward" and values.size > 8:
        values.flat[:: max(2, values.size // 5)] = np.nan
        values.flat[1 :: max(3, values.size // 3)] = np.inf
        values[rows // 2] = -np.inf
    if kind == "low":
        values -= 40
    elif kind == "ties":
        values = np.round(values)
    elif kind == "softmax":
        values = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    elif kind == "logarithms":
        values -= np.log(np.exp(values).sum(1, keepdims=True))
    elif kind == "over the batch":
        values -= np.log(np.exp(values).sum(0))
    return np.ascontiguousarray(values.astype(dtype))


def counted(x: np.ndarray, targets: np.ndarray, ignored: int) -> list[int]:
    """The numbers of `class_counts`, one by one."""
    x, (rows, classes) = x.astype(np.float64), x.shape
    inside = (targets != ignored) & (targets >= 0) & (targets < classes)
    top, finite = x.max(1), np.isfinite(x.max(1))
    with np.errstate(all="ignore"):
        of_rows, of_columns = (objective.NEAR * max(1, np.log(n)) for n in (classes, rows))
        shares = (x.min(1) >= 0) & (abs(x.sum(1) - 1) <= objective.NEAR)
        logs = (top <= of_rows) & (abs(np.log(np.exp(x).sum(1))) <= of_rows)
        columns = (x.max(0) <= of_columns) & (abs(np.log(np.exp(x).sum(0))) <= of_columns)
    right = inside & finite & (x.argmax(1) == targets)
    return [
        int(each.sum())
        for each in (targets == ignored, ~inside & (targets != ignored), inside, right, finite, shares, logs, columns)
    ]


@needed
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("kind", ["ordinary", "low", "ties", "softmax", "logarithms", "over the batch", "awkward"])
def test_what_a_loss_of_classes_is_given(kind: str, rows: int, width: int, dtype: Any) -> None:
    x = logits(rows, width, kind, dtype)
    targets = np.random.default_rng(1).integers(-2, width + 1, rows)
    targets[:1] = x[0].argmax()
    for ignored, build in product((-100, -1, 0), builds()):
        sums, counts, answers = (np.full(size, 99) for size in (8, width + 1, width + 1))
        assert build.class_counts(x, targets, ignored, NEAR, False, sums, counts, answers)
        right = counted(x, targets, ignored)
        assert sums.tolist() == [*right[:-1], 0]
        inside = (targets != ignored) & (targets >= 0) & (targets < width)
        assert counts.tolist() == np.bincount(np.where(inside, targets, width), minlength=width + 1).tolist()
        known = inside & np.isfinite(x.max(1))
        assert answers.tolist() == np.bincount(np.where(known, x.argmax(1), width), minlength=width + 1).tolist()
        may_be = ((x.min(0) >= 0) & (x.max(0) <= 1 + objective.NEAR)).any()
        again = sums.copy()
        assert build.class_counts(x, targets, ignored, NEAR, True, again, counts, answers) == (not may_be)
        if not may_be:
            assert again.tolist() == right


def both(monkeypatch: pytest.MonkeyPatch, build: Any, action: Any) -> tuple[Any, Any]:
    """With this build, and without kernels."""
    monkeypatch.setattr(native, "kernels", build)
    found = action()
    monkeypatch.setattr(native, "kernels", None)
    right = action()
    monkeypatch.undo()
    return found, right


def texts(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of the kinds that padding is looked for in."""
    rng = np.random.default_rng(seed)
    rows, length, high = int(rng.integers(1, 9)), int(rng.integers(2, 14)), int(rng.integers(1, 6))
    tokens = rng.integers(0, high, (rows, length))
    if seed % 3:
        tokens += 1  # padding stands nowhere else
        for row in tokens:
            run = int(rng.integers(0, length + 1))
            row[length - run :] = 0
        tokens = tokens if seed % 3 == 1 else tokens[:, ::-1].copy()
    shifted = tokens[:, 1:] if seed % 2 else np.roll(tokens, -1, 1)
    targets = np.where(rng.random(shifted.shape) < 0.2, -100 if seed % 5 else 0, shifted)
    return torch.from_numpy(tokens), torch.from_numpy(targets)


@needed
@pytest.mark.parametrize("seed", range(60))
def test_tokens_beside_targets(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, targets = texts(seed)
    x = 2 * torch.randn(targets.numel(), 6, generator=torch.Generator().manual_seed(seed))
    x[::3, 2], x[1, 4:] = np.nan if seed % 4 == 0 else 9, np.inf
    for build, padding, flat in product(builds(), (None, 0, 7), (True, False)):
        wanted = targets.reshape(-1) if flat else targets
        for ignored in (-100, 0):
            found, right = both(
                monkeypatch,
                build,
                lambda: objective.token_sums(tokens, wanted, ignored, padding),  # noqa: B023
            )
            assert found.tolist() == right.tolist()
        for given in (x, x.double()):
            found, right = both(monkeypatch, build, lambda: token_first_places(tokens, given, wanted))  # noqa: B023
            torch.testing.assert_close(found, right, rtol=1e-6, atol=0)  # torch divides whole numbers in float32


def test_padding_was_among_the_texts() -> None:
    found = [objective.token_sums(*texts(seed), -100, None) for seed in range(60)]
    assert 5 < sum(each is not None and bool(each[-2].all()) for each in found) < 40


@needed
@pytest.mark.parametrize("width", [8, 9, 40])
@pytest.mark.parametrize("high", [1, 3, 1000, 2**62])
def test_numbers_of_text(width: int, high: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randint(high, (30, width), generator=torch.Generator().manual_seed(width))
    tokens[3], tokens[4, 1:], tokens[5] = 7, 7, tokens[6]
    tokens[7] -= 2 * (high // 2)
    for build, padding, most in product(builds(), (None, 0, 7), (4 * width, 2**19)):
        found, right = both(monkeypatch, build, lambda: inputs.text_numbers(tokens, padding, most))  # noqa: B023
        for mine, other in zip(found, right, strict=True):
            assert mine.dtype == other.dtype
            assert mine.tolist() == other.tolist()


@needed
@pytest.mark.parametrize("shape", [(2,), (40,), (2, 1), (2, 3), (5, 17), (300, 7), (3, 40, 500), (130, 200), (9, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_how_outputs_differ(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    y = 5 + torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    odd, zero, alike = y.clone(), y.clone(), y[:1].expand(shape).clone()
    odd[0], zero[1] = np.nan, 0
    bits = set()
    for given, build in product((y, odd, zero, y + 1000, alike), builds()):
        found, right = both(monkeypatch, build, lambda: outputs.output_numbers(given))  # noqa: B023
        places = slice(None) if given is not alike else slice(1, 2)  # else 0, and what rounding makes of it
        torch.testing.assert_close(found[places], right[places], rtol=1e-9, atol=1e-12, equal_nan=True)
        if given is y:
            bits.add(found.numpy().tobytes())
    assert len(bits) == 1


GIVEN: dict[str, list[Any]] = {
    "class_counts": [np.ones((4, 5), np.float32), np.zeros(4, np.int64), -100, NEAR, True, np.zeros(8, np.int64),
                     np.zeros(6, np.int64), np.zeros(6, np.int64)],
    "text_numbers": [np.ones((4, 5), np.int64), 5, None, 2, np.zeros(2), np.zeros(4, np.int64), np.zeros(4, np.bool_)],
    "token_counts": [np.ones((4, 5), np.int64), np.ones((4, 4), np.int64), 4, -100, None, np.arange(3), np.zeros(10)],
    "first_places": [np.ones((4, 5), np.int64), np.ones((4, 5), np.int64), np.ones((20, 3)), 4, 256, np.zeros(3)],
    "output_spread": [np.ones((4, 5)), 4, 1, 1, True, np.zeros(4)],
}  # fmt: skip


@needed
@pytest.mark.parametrize("name", GIVEN)
def test_what_does_not_fit_is_refused(name: str) -> None:
    """Every argument in turn of another size, of another kind, or left out."""
    for build in builds():
        kernel = getattr(build, name)
        kernel(*GIVEN[name])
        for place, argument in enumerate(GIVEN[name]):
            for wrong in wrong_for(argument):
                given = [*GIVEN[name][:place], wrong, *GIVEN[name][place + 1 :]]
                with pytest.raises((TypeError, ValueError, BufferError)):
                    kernel(*given)
        with pytest.raises(TypeError):
            kernel(*GIVEN[name][:-1])


def wrong_for(argument: Any) -> list[Any]:
    if argument is None:
        return [np.zeros(2, np.int64), np.zeros(1)]
    if isinstance(argument, np.ndarray):
        gaps = [np.repeat(argument, 2)[::2]] if argument.size > 1 else []
        return [argument.reshape(-1)[:-1].copy(), np.zeros(argument.shape, np.int16), *gaps, None]
    return ["1"]


@needed
def test_what_is_written_has_room() -> None:
    """Sizes that go together only if one of them is wrong."""
    for build in builds():
        for at, wrong in ((1, 0), (1, -1), (1, 3), (2, 0), (2, 4), (3, 0), (2, -1)):
            given = [*GIVEN["output_spread"][:at], wrong, *GIVEN["output_spread"][at + 1 :]]
            with pytest.raises(ValueError, match="outputs"):
                build.output_spread(*given)
        for name, at in (("token_counts", 2), ("first_places", 3), ("text_numbers", 1)):
            for wrong in (0, -1, 3):
                given = [*GIVEN[name][:at], wrong, *GIVEN[name][at + 1 :]]
                with pytest.raises(ValueError, match="tokens"):
                    getattr(build, name)(*given)
        longer = [np.ones((4, 5), np.int64), np.ones((4, 6), np.int64), *GIVEN["token_counts"][2:]]
        with pytest.raises(ValueError, match="tokens"):
            build.token_counts(*longer)
