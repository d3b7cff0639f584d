"""Tables of a run's examples are read from what is stored, without a ledger made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.ledger import LedgerError
from learnscope.ledger.stored import stored_arrays, stored_frame
from learnscope.store.backend import FolderBackend, MemoryBackend


def followed(folder: Path | None, *, ids: Any, grand_every: int = 0, epochs: int = 2) -> ls.Run:
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = ls.ExampleLedger(grand_every=grand_every, check_inputs=False)
    with ls.watch(model, optimizer, run=folder, probes=[probe]) as w:
        for _ in range(epochs):
            x, y = torch.randn(len(ids), 3), torch.tensor(ids) % 4
            optimizer.zero_grad()
            logits = model(x)
            nn.functional.cross_entropy(logits, y).backward()
            optimizer.step()
            # an example whose score is never finite
            logits = torch.where((torch.tensor(ids) == ids[1])[:, None], torch.nan, logits.detach())
            w.examples(ids, logits, y, **({"inputs": x} if grand_every else {}))
            w.end_epoch()
    return w.run if folder is None else ls.open_run(folder)


@pytest.mark.parametrize("stored", ["folder", "memory"])
@pytest.mark.parametrize("ids", [[5, 3, 9, 0], [2**62, -7, 12, 4]])
@pytest.mark.parametrize("grand_every", [0, 1])
def test_the_table_is_that_of_the_ledger(stored: str, ids: list[int], grand_every: int, tmp_path: Path) -> None:
    run = followed(tmp_path / "run" if stored == "folder" else None, ids=ids, grand_every=grand_every)
    pd.testing.assert_frame_equal(run.examples(), run.ledger().frame())
    arrays, theirs = stored_arrays(run.backend), run.ledger().arrays()
    assert arrays is not None
    assert list(arrays) == list(theirs)
    for name, array in arrays.items():
        assert array.dtype == theirs[name].dtype, name
        np.testing.assert_array_equal(array, theirs[name])
    assert np.isnan(arrays["confidence"][sorted(ids).index(ids[1])])


def test_rows_of_another_order_are_sorted(tmp_path: Path) -> None:
    run = followed(tmp_path / "run", ids=[4, 1, 3])
    arrays = run.ledger().arrays(by_id=False)
    backend = MemoryBackend()
    backend.examples = {name: array[::-1] for name, array in arrays.items()}
    frame = stored_frame(backend)
    assert frame is not None
    pd.testing.assert_frame_equal(frame, run.examples())


def test_none_and_other_arrays(tmp_path: Path) -> None:
    assert stored_frame(MemoryBackend()) is None
    arrays = followed(None, ids=[1, 2, 3]).ledger().arrays()
    backend = MemoryBackend()
    backend.examples = {**arrays, "aum": arrays["aum"][1:]}
    with pytest.raises(LedgerError, match="different lengths"):
        stored_frame(backend)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "examples.parquet").write_bytes(b"PAR1, but nothing else")
    with pytest.raises(LedgerError, match="damaged"):
        stored_frame(FolderBackend(tmp_path / "run"))
