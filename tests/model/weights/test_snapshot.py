"""A copy of the weights at one step, wherever and however it is kept."""

from __future__ import annotations

import gc
import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from learnscope.model.weights.snapshot import Snapshot


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {
        "weight": nn.Parameter(torch.randn(5, 3).to(dtype)),
        "turned": nn.Parameter(torch.randn(4, 6).to(dtype).t()),
        "scalar": nn.Parameter(torch.tensor(2.0, dtype=dtype)),
        "empty": nn.Parameter(torch.zeros(0, 3, dtype=dtype)),
        "whole": nn.Parameter(torch.arange(4), requires_grad=False),
    }


@pytest.mark.parametrize("device", ["cpu", "disk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_it_holds_the_weights_as_they_were(device: str, dtype: torch.dtype) -> None:
    now = parameters(dtype)
    kept = Snapshot(now, 3, device=device)
    before = {name: p.detach().clone() for name, p in now.items()}
    with torch.no_grad():
        for p in now.values():
            p.add_(1)
    assert kept.step == 3
    assert list(kept.names) == ["weight", "turned", "scalar", "empty"], "integers are no weights"
    for name, tensor in kept.tensors.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, before[name])
        assert not tensor.requires_grad
    places = {name: t.data_ptr() for name, t in kept.tensors.items()}
    kept.update(now, 7)
    assert kept.step == 7
    assert all(torch.equal(t, now[name]) for name, t in kept.tensors.items())
    assert places == {name: t.data_ptr() for name, t in kept.tensors.items()}, "into the same memory"


@pytest.mark.parametrize("device", ["cpu", "disk"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_another_dtype(device: str, dtype: str) -> None:
    now = parameters()
    kept = Snapshot(now, 0, device=device, dtype=dtype)
    for name, tensor in kept.tensors.items():
        assert torch.equal(tensor, now[name].detach().to(getattr(torch, dtype)))


def test_on_disk_it_leaves_no_file_behind_even_if_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = Snapshot(parameters(), 0, device="disk")
    assert list(tmp_path.iterdir()) == []
    if sys.platform == "linux":  # mapped from the disk all the same
        maps = Path("/proc/self/maps").read_text()
        assert len(re.findall(rf"{re.escape(str(tmp_path))}/\S+\.bin \(deleted\)", maps)) == 3
    del kept
    gc.collect()
    if sys.platform == "linux":
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="snapshot dtype 'int8': use 'native' or one of bfloat16"):
        Snapshot(parameters(), 0, dtype="int8")


@pytest.mark.parametrize("what", ["appeared", "disappeared", "shape"])
def test_another_model_is_refused_by_name(what: str) -> None:
    now = parameters()
    kept = Snapshot(now, 3)
    kept.check(now)
    if what == "appeared":
        now["new"] = nn.Parameter(torch.zeros(2))
    elif what == "disappeared":
        del now["turned"]
    else:
        now["weight"] = nn.Parameter(torch.zeros(3, 5))
    match = {
        "appeared": "new appeared since the snapshot at step 3",
        "disappeared": "turned disappeared",
        "shape": r"weight changed shape from \(5, 3\) to \(3, 5\)",
    }[what]
    with pytest.raises(ValueError, match=match):
        kept.check(now)
