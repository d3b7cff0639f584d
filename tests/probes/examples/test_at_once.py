"""Batches that are taken when they are handed over, without waiting for the end of their step."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import learnscope as ls
from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.session.bound import Bound
from learnscope.session.engine import Engine


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(52, 6, generator=generator), torch.randint(3, (52,), generator=generator)


def train(run: Path | None, probe: Probe, *, epochs: int = 3, log: bool = False, early: bool = False) -> ls.Watch:
    """Shuffled batches of 4 from buffers that are filled again, with shorter ones now and then; closed at the end."""
    torch.manual_seed(0)
    x, y = data()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = ls.watch(model, optimizer, run=run, probes=[probe], strict=True)
    buffers: dict[int, tuple[Tensor, Tensor]] = {}
    for epoch in range(epochs):
        parts = torch.randperm(len(x)).split([4] * 11 + [1, 4, 3] if epoch % 2 else [4] * 13)
        for part in parts:
            ids, targets = buffers.setdefault(len(part), (torch.empty_like(part), torch.empty_like(part)))
            ids.copy_(part)
            targets.copy_(y[part])
            logits = model(x[part])
            loss = cross_entropy(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            if early:
                w.examples(ids, logits, targets)
            optimizer.step()
            if not early:
                w.examples(ids, logits, targets)
            if log:
                w.log(loss=loss)
        w.end_epoch()
    w.close()
    return w


@pytest.mark.parametrize("early", [False, True])
def test_the_ledger_is_the_same_to_the_last_digit(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Bound] = []
    prepare = Engine.prepare

    def counted(engine: Engine, bound: Bound, moment: Moment) -> None:
        calls.append(bound)
        prepare(engine, bound, moment)

    monkeypatch.setattr(Engine, "prepare", counted)
    at_once = train(None, ls.ExampleLedger(), early=early).run.examples()
    assert 0 < len(calls) < 20, "of 40 batches, only those of a new kind wait for the end of their step"
    monkeypatch.setattr(ls.ExampleLedger, "take_at_once", Probe.take_at_once)
    later = train(None, ls.ExampleLedger(), early=early).run.examples()
    assert len(calls) > 40, "then all do"
    pd.testing.assert_frame_equal(at_once, later, check_exact=True)


def test_every_presentation_counts_once(tmp_path: Path) -> None:
    frame = train(tmp_path / "run", ls.ExampleLedger()).run.examples()
    assert (frame["presentations"] == 3).all()
    assert (frame["nonfinite"] == 0).all()
    assert (frame["first_epoch"] == 0).all()
    assert (frame["last_epoch"] == 2).all()
    assert frame.set_index("id")["target"].tolist() == data()[1].tolist()


def test_logging_beside_it_is_no_sign_of_missing_examples() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(None, ls.ExampleLedger(), epochs=1, log=True)
        train(None, ls.ExampleLedger(), epochs=3, log=True)


class Seen(ls.ExampleLedger):
    """One that does something of its own with every batch."""

    def prepare(self, moment: Moment) -> None:
        moment.state["_seen"] = moment.state.get("_seen", 0) + len(moment.handed.examples)
        super().prepare(moment)


def test_a_probe_with_a_prepare_of_its_own_gets_every_batch() -> None:
    w = train(None, Seen())
    assert w._engine.bound[0].state["_seen"] == 13 + 14 + 13


class Collects(ls.Probe):
    """Another probe that is handed examples."""

    at: Any = "epoch"
    needs = frozenset({"examples"})

    def prepare(self, moment: Moment) -> None:
        ids = moment.state.setdefault("_ids", [])
        ids += [int(i) for batch in moment.handed.examples for i in batch.ids]

    def measure(self, moment: Moment) -> dict[str, float]:
        return {"count": float(len(moment.state["_ids"]))}


def test_two_probes_both_get_every_batch() -> None:
    x, y = data()
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.ExampleLedger(), Collects()], strict=True) as w:
        for ids in torch.arange(52).split(4):
            logits = model(x[ids])
            cross_entropy(logits, y[ids]).backward()
            optimizer.step()
            w.examples(ids, logits, y[ids])
        w.end_epoch()
    assert w._engine.bound[1].state["_ids"] == list(range(52))
    frame = w.run.examples()
    assert np.array_equal(frame["presentations"], np.ones(52))
