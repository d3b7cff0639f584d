"""Weights that a comparison renews on its way: the same numbers, and the same copies, as of one that only reads."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope import native
from learnscope.core.moment import Moment
from learnscope.model.weights.snapshot import Snapshot
from learnscope.record import Measurement
from learnscope.tensor.updates.delta import compared_and_renewed, delta_statistics

SHAPES = ((3, 5), (), (512,), (0, 4), (700, 3), (1,), (64, 64), (300, 500))
needs_kernels = pytest.mark.skipif(native.kernels is None, reason="no compiled kernels here")


def some(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


@needs_kernels
@pytest.mark.parametrize("odd", [None, 0.0, 1e-30, torch.inf, torch.nan])
def test_numbers_and_copies_are_right(odd: float | None) -> None:
    old, new = some(0), [tensor + 1e-3 * other for tensor, other in zip(some(0), some(1), strict=True)]
    if odd is not None:
        old[0][0], new[6][3] = odd, odd
    expected = delta_statistics(new, old, (1e-4, 1.0))
    found = compared_and_renewed(new, old, (1e-4, 1.0))
    assert found is not None
    for field in fields(found):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=field.name)
    for copy, tensor in zip(old, new, strict=True):
        torch.testing.assert_close(copy, tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ([torch.ones(3), torch.ones(4, dtype=torch.float64)], [torch.zeros(3), torch.zeros(4, dtype=torch.float64)]),
        ([torch.ones(3), torch.ones(4, 4)[:, ::2]], [torch.zeros(3), torch.zeros(4, 2)]),
        ([torch.ones(3), torch.ones(2, 3)], [torch.zeros(3), torch.zeros(3, 2).T]),
    ],
)
def test_what_no_kernel_can_renew_stays_as_it_was(new: list[Tensor], old: list[Tensor]) -> None:
    assert compared_and_renewed(new, old) is None
    assert all(not tensor.any() for tensor in old)


def test_a_snapshot_that_was_renewed_at_another_step_is_copied() -> None:
    """As where a probe has failed after it: weights written through `.data` show nothing of it."""
    model = nn.Linear(3, 3)
    held = Snapshot(dict(model.named_parameters()), 0)
    held.has_been_renewed(1)
    model.weight.data.fill_(7.0)
    held.update(dict(model.named_parameters()), 2)
    assert torch.equal(held.tensors["weight"], model.weight)
    assert held.step == 2


class Looking(ls.Probe):
    """Reads the previous weights after another probe has compared them."""

    every: int = 1
    needs = frozenset({"previous"})

    def measure(self, moment: Moment) -> Measurement:
        then = moment.previous.tensors["weight"].double()
        apart = float((moment.model.weight.double() - then).norm())  # type: ignore[union-attr,operator]
        return Measurement([ls.Table("model", ["model"], [ls.Column("apart", [apart])])])


class OneMore(ls.ParameterChange):
    """A class of the user's own, which reads the previous weights after its base has measured."""

    def measure(self, moment: Moment) -> Measurement:
        found = super().measure(moment)
        assert not torch.equal(moment.previous.tensors["weight"], moment.model.weight)  # type: ignore[arg-type]
        return found


def trained(run: Path, *probes: ls.Probe) -> ls.Run:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, run=run, probes=list(probes), strict=True) as w:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    return w.run


def changes(run: ls.Run, name: str) -> pd.Series:
    frame = run.frame(name, "l2")
    return frame[frame["kind"] == "model"]["value"] if "kind" in frame else frame["value"]


def test_probes_that_read_the_same_weights_afterwards_find_them(tmp_path: Path) -> None:
    alone = trained(tmp_path / "alone", ls.ParameterChange(every=1))
    beside = trained(tmp_path / "beside", ls.ParameterChange(every=1), Looking())
    own = trained(tmp_path / "own", OneMore(every=1))
    expected = changes(alone, "ParameterChange").tolist()
    assert len(expected) >= 6
    assert changes(beside, "ParameterChange").tolist() == expected
    assert changes(own, "OneMore").tolist() == expected
    apart = beside.frame("Looking", "apart")["value"]
    assert len(apart) == 6
    assert (apart > 0).all()
