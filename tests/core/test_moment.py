"""The moment that probes are given stays small, and has what they ask it for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from learnscope.core import moment as moments
from learnscope.core.gradients import current_gradients
from learnscope.core.handed import Examples, HandedOver
from learnscope.core.moment import Moment, NotAvailable
from learnscope.core.subject import Subject


def made(**details: object) -> Moment:
    subject = Subject(nn.Linear(2, 1))
    return Moment(step=3, phase="after_step", source="watch", subject=subject, **details)  # type: ignore[arg-type]


def test_it_stays_small() -> None:
    assert len(fields(Moment)) <= 10
    assert len(Path(moments.__file__).read_text().splitlines()) <= 200


def test_what_the_loop_handed_over_is_read_by_its_name() -> None:
    first, last = (Examples([n], torch.ones(1), torch.zeros(1)) for n in (1, 2))
    full = made(handed=HandedOver({"loss": [0.5]}, "b", [first, last]))
    assert (full.logged, full.batch, full.all_examples) == ({"loss": [0.5]}, "b", [first, last])
    assert full.examples == (last.ids, last.logits, last.targets)
    empty = made()
    assert (dict(empty.logged), empty.micro_batches) == ({}, None)
    with pytest.raises(NotAvailable, match=r"no batch was given for step 3: call w.batch\(batch\) in the loop"):
        _ = empty.batch


def test_gradients_are_read_once_and_unscaled() -> None:
    subject = Subject(nn.Linear(2, 1))
    subject.parameters[0].grad = torch.full((1, 2), 4.0)
    calls = []

    def take() -> object:
        calls.append(1)
        return current_gradients(subject)

    moment = made(take_gradients=take)
    assert moment.grads["weight"].tolist() == [[4.0, 4.0]]
    assert moment.gradients.missing == ["bias"]
    assert len(calls) == 1
    with pytest.raises(NotAvailable, match="there are no gradients at 'after_step'"):
        _ = made().grads


def test_a_sealed_moment_computes_nothing_new() -> None:
    moment = made()
    assert moment.once("known", lambda: 1) == 1
    with moment.sealing():
        assert moment.once("known", lambda: 2) == 1
        with pytest.raises(NotAvailable, match="was not computed before the weights were exchanged"):
            moment.once("new", lambda: 3)
        with pytest.raises(NotAvailable, match="was asked for while the weights were exchanged"):
            moment.remember({"part": 1}, dict)
    assert moment.once("new", lambda: 3) == 3
