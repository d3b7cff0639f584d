"""Copies that lie in rows: the same numbers as of tensors that do not, and a copy that needs no copying."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.weights.snapshot import Snapshot
from learnscope.tensor.updates.delta import DeltaTable, delta_statistics
from learnscope.tensor.updates.laid_out import PACKED, laid_out

SHAPES = ((3, 5), (), (512,), (0, 4), (700, 3), (1,), (64, 64))


def some(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def same(one: DeltaTable, other: DeltaTable) -> None:
    for field in fields(DeltaTable):
        a, b = getattr(one, field.name), getattr(other, field.name)
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=field.name)


@pytest.mark.parametrize("odd", [None, 0.0, 1e-30, torch.inf, torch.nan])
def test_numbers_are_those_of_tensors_that_lie_anywhere(odd: float | None) -> None:
    old, new = some(), [tensor + 1e-3 * other for tensor, other in zip(some(), some(1), strict=True)]
    new[4] = new[4].T.contiguous().T  # its memory is in another order
    if odd is not None:
        old[0][0], new[6][3] = odd, odd
    rows = laid_out(old)
    assert rows is not None
    for copy, tensor in zip(rows.tensors, old, strict=True):
        copy.copy_(tensor)
    same(delta_statistics(new, rows.tensors, (1e-4, 1.0), rows=rows), delta_statistics(new, old, (1e-4, 1.0)))
    assert rows.filled
    rows.exchange()
    assert not rows.filled
    for copy, tensor in zip(rows.tensors, new, strict=True):
        torch.testing.assert_close(copy, tensor, rtol=0, atol=0, equal_nan=True)
    same(delta_statistics(old, rows.tensors, rows=rows), delta_statistics(old, new))


def test_copies_in_another_order_are_compared_as_any_tensors() -> None:
    rows = laid_out(some())
    assert rows is not None
    for copy, tensor in zip(rows.tensors, some(), strict=True):
        copy.copy_(tensor)
    same(delta_statistics(some(1)[::-1], rows.tensors[::-1], rows=rows), delta_statistics(some(1)[::-1], some()[::-1]))
    assert not rows.filled


def test_what_does_not_fit_is_not_laid_out() -> None:
    assert laid_out([torch.zeros(PACKED + 1)]) is None
    assert laid_out([torch.zeros(3), torch.zeros(3, dtype=torch.float64)]) is None
    assert laid_out([]) is None


def test_a_snapshot_moves_on_with_or_without_a_comparison() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    held = Snapshot(dict(model.named_parameters()), 0)
    for step, compares in enumerate((True, False, True, True), start=1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        now = dict(model.named_parameters())
        before = {name: tensor.clone() for name, tensor in held.tensors.items()}
        if compares:
            weights, copies = [p.detach() for p in now.values()], [held.tensors[name] for name in now]
            table = delta_statistics(weights, copies, rows=held.rows)
            same(table, delta_statistics(weights, list(before.values())))
            held.compared(step)
        held.update(now, step)
        assert held.step == step
        assert all(torch.equal(held.tensors[name], now[name]) for name in now)


def test_a_comparison_of_an_earlier_step_is_no_copy_of_now() -> None:
    """As where a probe has failed after it: weights written through `.data` show nothing of it."""
    model = nn.Linear(3, 3)
    held = Snapshot(dict(model.named_parameters()), 0)
    delta_statistics([p.detach() for p in model.parameters()], list(held.tensors.values()), rows=held.rows)
    held.compared(1)
    model.weight.data.fill_(7.0)
    held.update(dict(model.named_parameters()), 2)
    assert torch.equal(held.tensors["weight"], model.weight)
