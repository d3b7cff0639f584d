"""Loops that fill one buffer with batch after batch, which grows: nothing may hold on to its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import learnscope as ls
from learnscope.session.defaults import default_probes


def batches(kind: str, into: list[Tensor]) -> Any:
    """Inputs and targets in the same two tensors each time, always one example more."""
    torch.manual_seed(0)
    for size in range(3, 16):
        if kind == "text":
            text = torch.randint(0, 20, (size, 13))
            made = [text[:, :-1], text[:, 1:]]
        else:
            made = [torch.randn(size, 40_000 if kind == "wide" else 12), torch.randint(0, 3, (size,))]
        yield [torch.cat([part], out=buffer.resize_(0)) for part, buffer in zip(made, into, strict=True)]


@pytest.mark.parametrize("kind", ["numbers", "wide", "text"])
@pytest.mark.parametrize("without_kernels", [False, True])
def test_buffers_grow_while_the_loop_is_watched(
    kind: str, without_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without_kernels:
        monkeypatch.setattr("learnscope.native.kernels", None)
    width = {"numbers": 12, "wide": 40_000, "text": 8}[kind]
    layers = [nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 20 if kind == "text" else 3)]
    model = nn.Sequential(*([nn.Embedding(20, 8)] if kind == "text" else []), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    into = [torch.empty(0, dtype=torch.int64 if kind == "text" else torch.float32), torch.empty(0, dtype=torch.int64)]
    more = [] if kind == "text" else [ls.ExampleLedger(check_ids=False)]
    with ls.watch(model, optimizer, probes=[*default_probes(), *more], strict=True) as w:
        for x, y in batches(kind, into):
            optimizer.zero_grad()
            logits = model(x)
            loss = cross_entropy(logits.flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if kind != "text":
                w.examples(torch.arange(len(y)), logits, y, inputs=x)
        assert w.steps == 13
    assert all(buffer.untyped_storage().resizable() for buffer in into)
