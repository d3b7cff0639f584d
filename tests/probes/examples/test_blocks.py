"""Batches that wait together for the ledger count as if each had been written at once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learnscope.core.handed import Examples
from learnscope.ledger import IdError, Ledger
from learnscope.probes.examples import ledger_writer
from learnscope.probes.examples.ledger_writer import LedgerWriter
from learnscope.probes.examples.waiting_batches import Block
from ledger.histories import Visit, assert_same, expected, visits_of

CLASSES, EXAMPLES = 3, 9
INPUTS = torch.randn(EXAMPLES, 5, generator=torch.Generator().manual_seed(1))


def logits_of(seed: int, size: int) -> Tensor:
    """Some with ties, some not finite."""
    z = torch.randn(size, CLASSES, generator=torch.Generator().manual_seed(seed)) * 4
    if seed % 4 == 0:
        z = z.round()
    if seed % 7 == 0:
        z[0, seed % CLASSES] = math.nan
    return z


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 4, 4, 4, 6]), st.integers(0, 10**6), st.booleans()), max_size=45),
    st.integers(1, 40),
)
def test_as_if_written_one_by_one(steps: list[tuple[int, int, bool]], looked: int) -> None:
    writer, visits, epoch = LedgerWriter(Ledger()), list[Visit](), 0
    buffers: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
    for number, (size, seed, epoch_ends) in enumerate(steps):
        ids = torch.randint(EXAMPLES, (size,), generator=torch.Generator().manual_seed(seed))  # some more than once
        parts = ids, logits_of(seed, size), ids % CLASSES, INPUTS[ids]
        if size in buffers:  # a loop that fills its buffers anew
            for buffer, part in zip(buffers[size], parts, strict=True):
                buffer.copy_(part)
        given_ = buffers.setdefault(size, tuple(part.clone() for part in parts))  # type: ignore[arg-type]
        writer.add(Examples(*given_), epoch)
        # a row with a NaN predicts nothing
        visits += [replace(v, correct=v.correct and v.finite) for v in visits_of(*parts[:3], epoch)]
        epoch += epoch_ends
        if number % looked == 0:
            writer.flush()
    writer.flush()
    if visits:
        wanted = expected(visits)
        assert_same(writer.ledger.frame(), wanted[[name for name in wanted if not name.startswith("grand")]])


def test_usual_batches_are_copied_into_room_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Block] = []
    monkeypatch.setattr(ledger_writer, "Block", lambda *parts: made.append(Block(*parts)) or made[-1])
    writer, ids = LedgerWriter(Ledger()), torch.arange(6)
    for epoch in range(5):
        for part in ids.split(4):  # four, and the rest
            for _ in range(20):
                z = logits_of(1, len(part)).requires_grad_()
                writer.add(Examples(part, z, part % CLASSES, INPUTS[part]), epoch)
    writer.flush()
    assert len(made) == 2
    assert writer.ledger.frame()["presentations"].eq(100).all()


def test_a_refused_batch_in_a_block_takes_no_other_with_it() -> None:
    writer, ids = LedgerWriter(Ledger()), torch.arange(4)
    for number in range(7):
        targets = ids % CLASSES if number != 5 else (ids + 1) % CLASSES
        writer.add(Examples(ids, logits_of(1, 4), targets, INPUTS[ids]), 0)
    with pytest.raises(IdError, match="another target"):
        writer.flush()
    for _ in range(3):
        writer.add(Examples(ids, logits_of(2, 4), ids % CLASSES, INPUTS[ids]), 0)
    writer.flush()
    assert writer.ledger.frame()["presentations"].tolist() == [9] * 4
    np.testing.assert_array_equal(writer.ledger.arrays()["target"], ids % CLASSES)
