"""Models that are spread over the ranks, and the ways in that must refuse them: a scene of `two_ranks.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import learnscope as ls
from learnscope.analysis import ModelAnalysisManager, ParameterSnapshot
from learnscope.dynamics import (
    FeatureEvolutionTracker,
    GradientFlowAnalyzer,
    LearningDynamicsAnalyzer,
    MemorizationDetector,
    PhaseTransitionAttributor,
)
from learnscope.posttrain import ModelAnalyzer
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from learnscope.trackers import GradientFlowTracker, SpectralTracker


def sharded(_rank: int) -> dict[str, Any]:
    """Models that are spread over both ranks, offered to every way in."""
    mesh = init_device_mesh("cpu", (2,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    made: dict[str, Callable[[], nn.Module]] = {
        "FSDP1": lambda: FullyShardedDataParallel(plain(), device_id=torch.device("cpu")),
        "FSDP1 with its own names": lambda: FullyShardedDataParallel(
            plain(), device_id=torch.device("cpu"), use_orig_params=True
        ),
        "FSDP1's inside": lambda: (
            FullyShardedDataParallel(plain(), device_id=torch.device("cpu"), use_orig_params=True).module
        ),
        "FSDP1 inside": lambda: nn.Sequential(
            nn.Linear(10, 10), FullyShardedDataParallel(plain(), device_id=torch.device("cpu"))
        ),
        "FSDP2": lambda: fully_shard(plain(), mesh=mesh),
        "FSDP2 uneven": lambda: fully_shard(nn.Sequential(nn.Linear(10, 1), nn.ReLU(), nn.Linear(1, 3)), mesh=mesh),
        "FSDP2 of one layer": lambda: _one_layer(mesh),
        "tensor parallel": lambda: parallelize_module(plain(), mesh, plan),
    }
    shown: dict[str, Any] = {}
    for kind, make in made.items():
        model = make()
        for door, action in ways_in(model).items():
            shown[f"{kind}: {door}"] = refusal(action)
            dist.barrier()
    whole = plain()
    shards = fully_shard(copy.deepcopy(whole), mesh=mesh)
    shown["checkpoint: replay"] = refusal(lambda: ls.replay([shards.state_dict()], model=whole, run="s/ckpt"))
    shown["checkpoint: audit"] = refusal(lambda: ls.audit(whole, base=shards, run="s/ckpt"))
    return {"refusals": shown, "left": [str(path) for path in Path("s").rglob("*")]}


def _one_layer(mesh: Any) -> nn.Module:
    model = plain()
    fully_shard(model[2], mesh=mesh)
    return model


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))


def ways_in(model: nn.Module) -> dict[str, Callable[[], object]]:
    x, y = torch.randn(6, 10), torch.zeros(6, dtype=torch.long)
    data, ids = [(x, y)], torch.arange(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = TelemetryConfig(output_dir="s/telemetry", collect_every_n=1)
    return {
        "watch": lambda: ls.watch(model, optimizer, run="s/watch", holdout=data),
        "watch in memory": lambda: ls.watch(model, optimizer),
        "replay": lambda: ls.replay([plain().state_dict()], model=model, run="s/replay"),
        "replay of modules": lambda: ls.replay([model], run="s/replay"),
        "audit": lambda: ls.audit(model, data, run="s/audit"),
        "manager": lambda: ModelAnalysisManager.create(run="s/manager").on_optimizer_step(model),
        "snapshot": lambda: ParameterSnapshot.from_model(model),
        "telemetry": lambda: TrainingTelemetry(config).on_batch_end(model, optimizer, 0, 0),
        "learning": lambda: LearningDynamicsAnalyzer(run="s/learning").track_batch(model, x, y, ids, 0),
        "gradient flow": lambda: GradientFlowAnalyzer(model, run="s/flow"),
        "memorization": lambda: MemorizationDetector(run="s/memory").compute_memorization_scores(model, data, data, 0),
        "features": lambda: FeatureEvolutionTracker(model, ["0"], run="s/features"),
        "transitions": lambda: PhaseTransitionAttributor({0: plain(), 1: model}, data),
        "spectral": lambda: SpectralTracker(model, save_dir="s/spectral"),
        "adapter gradients": lambda: GradientFlowTracker(model, save_dir="s/spectral"),
        "posttrain": lambda: ModelAnalyzer(model),
    }


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001  (what is raised is the result)
        return f"{type(error).__name__}: {error}"
    return "accepted"
