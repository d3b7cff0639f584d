"""A loop may fill the same tensors with every batch: what it has handed over stays as it was."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import learnscope as ls

X, Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2


def followed(folder: Path, *, reuse: bool, arrays: bool, after: bool) -> pd.DataFrame:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids, targets = torch.empty(4, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    with ls.watch(model, optimizer, run=folder, probes=[ls.ExampleLedger()]) as w:
        for epoch in range(2):
            for batch in torch.randperm(24, generator=torch.Generator().manual_seed(epoch)).split(4):
                ids, targets = (ids, targets) if reuse else (torch.empty_like(ids), torch.empty_like(targets))
                ids.copy_(batch), targets.copy_(Y[batch])
                optimizer.zero_grad()
                logits = model(X[batch])
                F.cross_entropy(logits, targets).backward()
                given = ids.numpy() if arrays else ids
                if not after:
                    w.examples(given, logits, targets)
                optimizer.step()
                if after:
                    w.examples(given, logits, targets)
            w.end_epoch()
    return ls.open_run(folder).examples().sort_values("id").reset_index(drop=True)


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_buffers_that_are_filled_again(tmp_path: Path, arrays: bool, after: bool) -> None:
    fresh = followed(tmp_path / "fresh", reuse=False, arrays=arrays, after=after)
    reused = followed(tmp_path / "reused", reuse=True, arrays=arrays, after=after)
    pd.testing.assert_frame_equal(reused, fresh)
