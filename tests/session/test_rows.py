"""The ids of examples that are kept for when something happens, and the losses that make it happen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls
from learnscope.session.steps.loss_watch import LossWatch
from learnscope.session.steps.rows import STEPS, RecentRows, ids_in


def test_the_last_steps_are_kept_and_no_more() -> None:
    rows = RecentRows()
    for step in range(1, 40):
        rows.add(step, torch.tensor([step, step + 100]))
        rows.add(step, [f"row {step}"])
    assert rows.of(39) == [39, 139, "row 39"]
    assert rows.of(39, 1) == [39, 139]
    assert rows.of(40 - STEPS) != []
    assert rows.of(39 - STEPS) == []
    rows.drop(39, 1)
    assert rows.of(39) == ["row 39"]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"x": torch.zeros(2, 3), "index": torch.tensor([4, 5])}, [4, 5]),
        ({"ids": ["a", "b"]}, ["a", "b"]),
        ({"ids": torch.zeros(2, 7).long()}, None),  # of tokens
        ({"x": torch.zeros(2)}, None),
        ((torch.zeros(2, 3), torch.zeros(2), torch.tensor([4, 5])), [4, 5]),
        ((torch.zeros(2, 3), torch.zeros(2), torch.tensor([4, 5, 6])), None),
        ((torch.zeros(2, 3), torch.zeros(2), torch.tensor([0.5, 1.0])), None),
        ((torch.zeros(2, 3), torch.zeros(2)), None),
        ((torch.zeros(2, 3), torch.zeros(2), np.array([4, 5])), [4, 5]),
        (torch.zeros(2, 3), None),
    ],
)
def test_ids_in_batches(batch: object, expected: list[object] | None) -> None:
    found = ids_in(batch)
    assert (None if found is None else list(found)) == expected


def test_ids_are_copied() -> None:
    buffer = torch.tensor([1, 2])
    ids = ids_in({"ids": buffer})
    buffer.zero_()
    assert ids.tolist() == [1, 2]


def test_losses_that_stand_out() -> None:
    draw = np.random.default_rng(0)
    seen = LossWatch()
    usual = sum(seen.stands_out(float(2 * 0.999**n + 0.1 * draw.standard_normal())) for n in range(5000))
    assert usual <= 5  # 4.8 standard deviations of noise
    assert seen.stands_out(2.0)
    assert not seen.stands_out(0.05)
    assert not seen.stands_out(-3.0)
    assert [seen.stands_out(float("nan")) for _ in range(5)] == [True, True, True, False, False]


def test_a_constant_loss_does_not_stand_out_and_a_jump_of_it_does() -> None:
    seen = LossWatch()
    assert not any(seen.stands_out(1.0) for _ in range(100))
    assert seen.stands_out(1.1)


@pytest.mark.parametrize("how", ["batch", "examples", "ledger"])
def test_a_spike_names_its_rows(how: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(640, 4)
    y = (x[:, 0] > 0).long()
    data = ls.IndexedDataset(TensorDataset(x, y))
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    probes = [ls.Loss(), *([ls.ExampleLedger()] if how == "ledger" else [])]
    seen, step = {}, 0
    with ls.watch(model, optimizer, probes=probes) as w:
        for _ in range(2):
            for inputs, targets, ids in loader:
                step += 1
                seen[step] = ids.tolist()
                logits = model(inputs * (50 if step == 60 else 1))
                wrong = 1 - targets if step == 60 else targets
                loss = nn.functional.cross_entropy(logits, wrong)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                w.log(loss=loss)
                if how == "batch":
                    w.batch((inputs, targets, ids))
                else:
                    w.examples(ids, logits, targets)
    assert w.run.rows_of_step(60) == seen[60]
    assert w.run.rows_of_step(59) == seen[59]
    assert w.run.rows_of_step(40) == []
    assert [record.step for record in w.run.records("Loss") if record.notes] == [60]
