"""The hook that sees a step's batch: what it must not do to the model it is on."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from analysis.loops import Net, batches
from learnscope.analysis import AnalysisConfig, ModelAnalysisManager

# People pickle whole models, and load their own files so: the hook must survive it. Nothing in src does either.
LOAD_WITHOUT = """
import sys, torch
from torch import nn
model = torch.load(sys.argv[1], weights_only=False)
assert model(torch.ones(2, 10)).shape == (2, 4)
assert not any(name.startswith("learnscope") for name in sys.modules)
"""


def create(**options: Any) -> ModelAnalysisManager:
    return ModelAnalysisManager.create(AnalysisConfig.from_dict({"interval": 1, **options}), strict=True)


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copied_model_works_and_has_nothing_of_ours(how: str) -> None:
    model, analyzer = Net(), create()
    analyzer.on_optimizer_step(model)
    if how == "deepcopy":
        twin = copy.deepcopy(copy.deepcopy(model))
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
    else:
        torch.save(model, file := io.BytesIO())
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    (x, _), (other, _) = batches(2)
    assert torch.equal(copy.deepcopy(model).eval()(x), copy.deepcopy(twin).eval()(x))
    model(x)
    twin(other)
    (args, _kwargs) = analyzer._session._batches.take()  # type: ignore[union-attr]
    assert args[0] is x, "the copy's batch was taken for the model's"


def test_a_saved_model_loads_where_there_is_no_learnscope(tmp_path: Path) -> None:
    model, analyzer = nn.Sequential(nn.Linear(10, 4)), create()
    analyzer.on_optimizer_step(model)
    torch.save(model, tmp_path / "model.pt")
    subprocess.run([sys.executable, "-c", LOAD_WITHOUT, str(tmp_path / "model.pt")], check=True, timeout=120)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("interval", [1, 3])
def test_a_compiled_model_is_not_compiled_more_often(in_place: bool, interval: int) -> None:
    torch._dynamo.reset()
    compiled: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model, analyzer, returned = Net(), create(interval=interval), []
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    analyzer.on_optimizer_step(model)
    run: Any = model if in_place else torch.compile(model, backend=backend, fullgraph=True)
    if in_place:
        model.compile(backend=backend, fullgraph=True)
    for x, y in batches(9):
        step(run, x, y, optimizer)
        returned.append(analyzer.on_optimizer_step(model))
    assert len(compiled) == 1
    assert [bool(metrics) for metrics in returned] == [(k + 1) % interval == 0 for k in range(9)]
    assert all("sparse/kl_at_1e-06" in metrics for metrics in returned if metrics)
    torch._dynamo.reset()
