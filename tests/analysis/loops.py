"""Small models and loops for the analysis's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.analysis import ModelAnalysisManager


class Net(nn.Module):
    """Dropout and batch norm: what a careless look disturbs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 24)
        self.norm = nn.BatchNorm1d(24)
        self.drop = nn.Dropout(0.4)
        self.last = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


def batches(count: int = 40, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(5)
    inputs = [torch.randn(size, 10, generator=draw) for _ in range(count)]
    return [(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()) for x in inputs]


def train(
    analyzer: ModelAnalysisManager | None,
    steps: int,
    *,
    model: nn.Module | None = None,
    make: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=1e-2),
    clear: bool | None = None,
    **given: Any,
) -> tuple[nn.Module, list[dict[str, Any]], list[Tensor]]:
    """Train, and what every call of the analyzer returned. `clear`: gradients are cleared before it, to None or 0."""
    torch.manual_seed(1)
    model = Net() if model is None else model
    optimizer = make(model.parameters())
    returned, losses = [], []
    for (x, y), _ in zip(batches(steps), range(steps), strict=True):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if clear is not None:
            optimizer.zero_grad(set_to_none=clear)
        if analyzer is not None:
            arguments = {"inputs": (x, y)} | given
            returned.append(analyzer.on_optimizer_step(model, **arguments))
        optimizer.zero_grad()
    return model, returned, losses


def tiny_llama(**options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, **options,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def tokens(rows: int = 3, length: int = 8, padded: int = 3) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length - padded :] = 0
    return {"input_ids": torch.randint(60, (rows, length), generator=draw), "attention_mask": mask}


def nudge(model: nn.Module, size: float = 1e-3, seed: int = 0) -> None:
    """Move all floating weights a little, without an optimizer."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p += size * torch.randn(p.shape, generator=draw).to(p.dtype)
