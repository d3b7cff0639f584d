"""Patches between steps of a run, from the states in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import learnscope as ls

STEPS = 8


def trained(folder: Path | None, every: int = 2, compiled: bool = False, **options: Any) -> dict[int, nn.Module]:
    """A watched run that saves its state after every step; a copy of the model at each."""
    from copy import deepcopy

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model: Any = torch.compile(plain, backend="eager") if compiled else plain
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = {0: deepcopy(plain)}
    with ls.watch(model, optimizer, run=folder, probes=[ls.ParameterChange(every=every, **options)]) as w:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            w.save_state()
            kept[step] = deepcopy(plain)
    return kept


@pytest.mark.parametrize("compiled", [False, True])
def test_between_two_steps(compiled: bool, tmp_path: Path) -> None:
    models = trained(tmp_path / "r", compiled=compiled)
    run = ls.open_run(tmp_path / "r")
    info = run.export_patch(6, 8)
    assert info.path == tmp_path / "r" / "patches" / "6-8.safetensors"
    assert info.parameters_only
    target = models[6]
    statistics = target[1].running_mean.clone()
    ls.apply_patch(target, info.path)
    for (name, found), wanted in zip(target.named_parameters(), models[8].parameters(), strict=True):
        assert torch.equal(found, wanted), name
    assert torch.equal(target[1].running_mean, statistics), "not a parameter: left alone"
    with pytest.raises(ls.PatchError, match="has other values"):
        ls.apply_patch(models[7], info.path)


def test_a_step_that_is_not_there(tmp_path: Path) -> None:
    trained(tmp_path / "r")
    run = ls.open_run(tmp_path / "r")
    with pytest.raises(ls.CheckpointError, match=r"no weights of step 7: there are steps 6, 8\. w\.save_state\(\)"):
        run.export_patch(7, 8)
    trained(tmp_path / "q", snapshot_dtype="float16")
    with pytest.raises(ls.CheckpointError, match=r"step 6 \(of this step a copy in another dtype.*there are none"):
        ls.open_run(tmp_path / "q").export_patch(6, 8)


def test_a_step_and_a_checkpoint(tmp_path: Path) -> None:
    models = trained(tmp_path / "r")
    run = ls.open_run(tmp_path / "r")
    parameters = dict(models[8].named_parameters())
    torch.save(parameters, tmp_path / "last.pt")
    info = run.export_patch(6, tmp_path / "last.pt")
    assert info.path.name == "6-last.safetensors"
    found = ls.apply_patch(dict(models[6].named_parameters()), info.path)
    assert all(torch.equal(found[name], parameters[name]) for name in parameters)
    with pytest.raises(ls.PatchError, match=r"'1\.running_mean' is in one of the two only.*Compare two steps"):
        run.export_patch(6, models[8], tmp_path / "p.safetensors")


def test_two_checkpoints_and_where_it_goes(tmp_path: Path) -> None:
    models = trained(tmp_path / "r")
    run = ls.open_run(tmp_path / "r")
    with pytest.raises(ValueError, match="weights in memory have no name: say where"):
        run.export_patch(models[0], 8)
    info = run.export_patch(models[0], models[1], tmp_path / "p.safetensors")
    assert not info.parameters_only
    ls.apply_patch(models[0], info.path)
    assert torch.equal(models[0][1].running_mean, models[1][1].running_mean)


def test_a_run_in_memory() -> None:
    model = nn.Linear(2, 2)
    with ls.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), probes=[ls.LearningRate()]) as w:
        pass
    with pytest.raises(ValueError, match="this run is in memory"):
        w.run.export_patch(1, 2)
    with pytest.raises(ValueError, match="keeps no weights of step 1"):
        w.run.export_patch(1, model, "p.safetensors")
