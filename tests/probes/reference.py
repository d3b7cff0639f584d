"""Models and arithmetic that the tests of probes are checked against: NumPy in float64, nothing of learnscope."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls


def array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The entries in float64. A sparse tensor is made dense."""
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.is_sparse else tensor).double().cpu().numpy().copy()


def norm(tensors: Iterable[Tensor | np.ndarray[Any, Any]]) -> float:
    """√Σx², scaled by the largest entry, so that neither 1e-200 nor 1e200 is lost."""
    parts = [array(t).ravel() if isinstance(t, Tensor) else t.ravel() for t in tensors]
    flat = np.concatenate(parts)
    top = np.abs(flat).max()
    return float(top * np.sqrt(((flat / top) ** 2).sum())) if np.isfinite(top) and top > 0 else float(top)


def gradients(model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    """A float64 copy of all gradients as they stand."""
    return {name: array(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def layer_of(name: str) -> str:
    """The layer of a parameter of the models below, written down by hand."""
    parts = name.split(".")
    return ".".join(parts[: parts.index("h") + 2]) if "h" in parts else ".".join(parts[:-1])


def component_of(name: str) -> str:
    parts = name.split(".")
    if "h" not in parts:
        return parts[-2]
    inside = parts[parts.index("h") + 2 : -1]
    return ".".join(inside) if inside[-1] == "c_proj" else inside[-1]


def by(key: Any, names: Iterable[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name in names:
        out.setdefault(key(name), []).append(name)
    return out


def tiny_gpt2(**options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 40, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, "bos_token_id": 0, "eos_token_id": 0, **options}))


class ConvNet(nn.Module):
    """Convolution, batch norm, ReLU (so that some gradients are exactly 0), pooling, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv1(x)))
        return self.head(F.relu(self.conv2(x)).mean((2, 3)))


def mlp(*sizes: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def rows(run: ls.Run, probe: str, name: str, kind: str = "model", **labels: Any) -> pd.DataFrame:
    frame = run.frame(probe, name, kind)
    for label, wanted in labels.items():
        frame = frame[frame[label] == wanted]
    return frame


def values(run: ls.Run, probe: str, name: str, kind: str = "model", **labels: Any) -> list[float]:
    return list(rows(run, probe, name, kind, **labels).value)


def at_scope(run: ls.Run, probe: str, name: str, kind: str, **labels: Any) -> dict[str, float]:
    """The numbers of the last step, by scope."""
    frame = rows(run, probe, name, kind, **labels)
    frame = frame[frame.step == frame.step.max()]
    return dict(zip(frame.scope, frame.value, strict=True))


def failures(run: ls.Run) -> list[str]:
    return [record.error for record in run.records() if record.error]


def tokens(batch: int, length: int, vocabulary: int = 40, seed: int = 0) -> Tensor:
    return torch.randint(1, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def concatenated(arrays: dict[str, np.ndarray[Any, Any]], names: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.concatenate([arrays[name].ravel() for name in names])
