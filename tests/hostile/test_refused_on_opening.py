"""Options that name something the model or the disk does not have: refused on opening, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls

X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3

REFUSED: dict[str, tuple[Callable[[Path], ls.Probe], str]] = {
    "a layer": (lambda _: ls.FeatureEvolution(layers=["frist"]), r"FeatureEvolution\(layers=.*'frist'.*first"),
    "a second layer": (lambda _: ls.FeatureEvolution(layers=["first", "zzz"]), "no layer 'zzz'.*first"),
    "a matrix": (lambda _: ls.WeightSpectrum(parameters="frist"), "'frist'.*first"),
    "a pattern of the landscape": (lambda _: ls.LossLandscape(parameters="frist.weight"), "frist.*first.weight"),
    "a pattern of examples": (lambda _: ls.ExampleTransitions(parameters="frist.weight"), "frist.*first.weight"),
    "no pattern": (lambda _: ls.ExampleTransitions(parameters="("), r"ExampleTransitions\(parameters.*no regular"),
    "a unit": (lambda _: ls.BitWidths(configurations={"a": {"frist": 4}}), "configuration 'a'.*frist"),
    "a file": (lambda folder: ls.BitOptimum(sensitivities=str(folder / "none.json")), "no file .*none.json"),
    "a budget": (lambda _: ls.BitOptimum(max_bytes=1), "max_bytes=1 cannot be kept"),
    "a folder as a file": (lambda folder: ls.WeightDelta(path=str(folder), run="a"), r"WeightDelta\(path="),
    "a file as a folder": (lambda folder: ls.WeightDelta(path=f"{folder}/file/a.pt", run="a"), r"WeightDelta\(path="),
    "a device": (lambda _: ls.ParameterChange(snapshot_device="nowhere"), "ParameterChange.*snapshot_device='nowhere'"),
    "a device that is not here": (lambda _: ls.SparseQuality(snapshot_device="xla:7"), "SparseQuality.*xla"),
    "a dtype": (lambda _: ls.LowRankQuality(snapshot_dtype="int8"), "LowRankQuality.*snapshot_dtype='int8'"),
}  # fmt: skip


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("first", nn.Linear(6, 6))
    model.add_module("head", nn.Linear(6, 3))
    return model


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("way", ["watch", "replay", "audit"])
def test_what_is_not_there_is_refused_before_anything_is_written(case: str, way: str, tmp_path: Path) -> None:
    make, message = REFUSED[case]
    (tmp_path / "file").write_text("")
    model, data = network(), [(X, Y)]
    probes = [make(tmp_path)]
    with pytest.raises(ValueError, match=message):
        if way == "watch":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            ls.watch(model, optimizer, run=tmp_path / "run", probes=probes, holdout=data, train=data)
        elif way == "replay":
            ls.replay([model], run=tmp_path / "run", probes=probes, holdout=data, train=data)
        else:
            ls.audit(model, data, run=tmp_path / "run", probes=probes, base=model, train=data)
    assert not (tmp_path / "run").exists()


def test_what_is_there_opens(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probes = [
        ls.FeatureEvolution(layers=["first"]), ls.WeightSpectrum(parameters="first"),
        ls.LossLandscape(parameters="first"), ls.ExampleTransitions(parameters="head"),
        ls.WeightDelta(path=str(tmp_path / "new" / "a.pt"), run="a"),
    ]  # fmt: skip
    data = [(X, Y)]
    ls.watch(model, optimizer, run=tmp_path / "run", probes=probes, holdout=data, train=data).close("stopped")
    assert (tmp_path / "run").exists()
