"""Sums of a loss function's arguments: small ones by NumPy, large ones by torch, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learnscope import native
from learnscope.tensor.features import inputs, small_inputs
from learnscope.tensor.outputs import objective, small_objective


def all_ways(monkeypatch: pytest.MonkeyPatch, module: object, action: object) -> list[dict[str, torch.Tensor]]:
    """With kernels where there are any, by NumPy, and by torch."""
    found = [action()]  # type: ignore[operator]
    monkeypatch.setattr(native, "kernels", None)
    found.append(action())  # type: ignore[operator]
    monkeypatch.setattr(module, "SMALL", -1)
    return [*found, action()]  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(12))
def test_classes_are_summed_up_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = [(7, 5), (3, 4, 6), (1, 1), (0, 3), (20, 9), (6,)][seed % 6]
    logits = 3 * torch.randn(shape, generator=generator, dtype=torch.float64 if seed % 2 else torch.float32)
    logits = [logits, logits.softmax(-1), logits.log_softmax(-1)][seed % 3] if logits.ndim == 2 else logits
    classes = shape[1] if len(shape) > 1 else shape[0]
    targets = torch.randint(-2, classes + 1, (shape[0], *shape[2:]) if len(shape) > 1 else (), generator=generator)
    if logits.numel() > 10 and seed > 5:
        logits.view(-1)[:3] = torch.tensor([np.nan, np.inf, -np.inf])
    weight = torch.rand(classes, generator=generator) if seed % 4 == 0 else None
    host, small, large = all_ways(
        monkeypatch, small_objective, lambda: objective.class_sums(logits, targets, [-100, 1, -1][seed % 3], weight)
    )
    assert host.keys() == small.keys() == large.keys()
    for name in small:
        for found in (host[name], small[name]):
            right = np.asarray(large[name]).reshape(np.shape(found))
            np.testing.assert_allclose(found, right, rtol=1e-6, atol=0, err_msg=name)


@pytest.mark.parametrize("values", [2, 3, 40, 10**6])
@pytest.mark.parametrize("columns", [1, 4, 14, 64, 70])
def test_rows_are_compared_alike(values: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rows by NumPy, large ones by torch: how many tokens differ, and what may be equal by chance."""
    rows = torch.randint(values, (24, columns), generator=torch.Generator().manual_seed(values))
    rows[5] = rows[6]
    cases = [rows, rows.T.contiguous().T, rows[:9], rows[:1].expand(12, columns)]
    floats = [case.double().where(case != 1, torch.nan) for case in cases]

    def found() -> list[torch.Tensor]:
        counts = [each for case in cases for each in (inputs.token_numbers(case), inputs.long_enough(case, None))]
        return [*counts, *(inputs.equal_by_chance(case) for case in (*cases, *floats))]

    small = found()
    monkeypatch.setattr(small_inputs, "SMALL", -1)
    for a, b in zip(small, found(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_inputs_are_summed_up_alike(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (100 * torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))).to(dtype)
    x[1] = 0
    if dtype.is_floating_point:
        x[2, 0, :2] = torch.tensor([np.nan, -np.inf])
    numbers = [inputs.number_moments, inputs.root_mean_square] if dtype.is_floating_point else []
    small = [*(each(x) for each in numbers), *inputs.row_hashes(x)]
    monkeypatch.setattr(small_inputs, "SMALL", -1)
    large = [*(each(x) for each in numbers), *inputs.row_hashes(x)]
    assert len(small) == len(large)
    for a, b in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [7, 4, 2])
@pytest.mark.parametrize("log", [True, False])
def test_softmax_over_the_batch_is_counted_by_columns(size: int, log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of as many examples as classes, where rows and columns cannot be told apart."""
    logits = 3 * torch.randn(size, 4, generator=torch.Generator().manual_seed(0))
    given = logits.log_softmax(0) if log else logits.softmax(0)
    place = objective.CLASS_NUMBERS.index("over_batch")
    for outputs, columns in ((given, 0 if size == 4 else 4), (logits, 0), (logits.log_softmax(1), 0)):
        targets = torch.zeros(size, dtype=torch.int64)
        found = all_ways(monkeypatch, small_objective, lambda: objective.class_sums(outputs, targets, -100))  # noqa: B023
        assert [int(each["sums"][place]) for each in found] == [columns] * 3
        monkeypatch.undo()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_over_the_places_of_sequences_is_counted(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns add up to the number of sequences, or of places; over the classes, rows add up to 1."""
    logits = 3 * torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))
    place, targets = objective.CLASS_NUMBERS.index("over_batch"), torch.zeros(30, dtype=torch.int64)
    for outputs, columns in ((logits.softmax(axis), 0 if axis == 2 else 3), (logits.sigmoid(), 0), (logits, 0)):
        given = outputs.flatten(0, 1)
        found = all_ways(monkeypatch, small_objective, lambda: objective.class_sums(given, targets, -100))  # noqa: B023
        assert [int(each["sums"][place]) for each in found] == [columns] * 3
        monkeypatch.undo()


def test_a_sigmoid_of_a_sigmoid_is_counted() -> None:
    logits = 9 * torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    place = objective.ANSWER_NUMBERS.index("twice")
    for outputs, least, most in (
        (logits.sigmoid().sigmoid(), 40, 40),
        (logits.sigmoid(), 0, 10),
        (logits * torch.nan, 0, 0),
    ):
        sums = objective.answer_sums(outputs, torch.zeros(40, 1), logits=False)["sums"]
        assert least <= int(sums[place]) <= most


@pytest.mark.parametrize(
    ("row", "ignored"),
    [
        ([5, 1, 6, 1, 7, 8], 2),  # a token of the text
        ([5, 6, 7, 8, 1, 1], 0),  # padding
        ([1, 1, 5, 6, 7, 8], 0),
        ([1, 1, 1, 1, 1, 1], 0),
    ],
)
def test_tokens_that_are_ignored_inside_of_rows(row: list[int], ignored: int) -> None:
    text = torch.tensor([[9, *row]])
    found = objective.token_sums(text, text[:, 1:], 1, None)
    assert found is not None
    assert found[-1].tolist() == [ignored, 6]
    masked = objective.token_sums(torch.tensor([[9, 5, 2, 6, 3, 7, 8]]), text[:, 1:], 1, None)
    assert masked is not None
    assert masked[-1, 0] == 0  # what is ignored is not what the text has there


@pytest.mark.parametrize("size", [0, 1, 2**14, 5 * 2**14 + 3])
def test_a_root_mean_square_in_pieces(size: int) -> None:
    """Against NumPy in float64; of all entries, wherever a piece ends."""
    x = 1e3 + torch.randn(size, generator=torch.Generator().manual_seed(0))
    wide = x.numpy().astype(np.float64)
    expected = np.sqrt((wide**2).sum() / size) if size else np.nan
    strided = torch.stack([x, x + 1], 1)[:, 0]
    for given in (x, strided):
        assert float(inputs.root_mean_square(given)) == pytest.approx(expected, rel=1e-12, nan_ok=True)
