"""Models and gradients that per-example gradients are checked against: one backward an example."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Matrix = np.ndarray[Any, Any]


class ConvNet(nn.Module):
    """Batch-norm with statistics of its own, dropout, an in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(12, 4)
        assert self.norm.running_mean is not None
        self.norm.running_mean.uniform_(-1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(F.relu(self.norm(self.conv(x)), inplace=True).flatten(1)))


class Tied(nn.Module):
    """Embedding and head share a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).tanh())


def one_by_one(model: nn.Module, losses: Sequence[Tensor]) -> Matrix:
    """A backward an example, all trainable parameters in a row; nothing of learnscope."""
    chosen = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, chosen, allow_unused=True, retain_graph=True)
        dense = [torch.zeros_like(p) if g is None else g.to_dense() for p, g in zip(chosen, found, strict=True)]
        rows.append(torch.cat([g.reshape(-1) for g in dense]).detach().numpy())
    return np.stack(rows)


def state(model: nn.Module) -> list[Any]:
    """All that a pass could leave behind, as things that can be compared."""
    config = getattr(model, "config", None)
    return [
        [m.training for m in model.modules()],
        [p.detach().clone().numpy().tobytes() for p in model.parameters()],
        [id(p) for p in model.parameters()],
        [(id(b), b.clone().numpy().tobytes()) for b in model.buffers()],
        [None if p.grad is None else p.grad.clone().numpy().tobytes() for p in model.parameters()],
        [(p.requires_grad, p._version) for p in model.parameters()],
        torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tobytes(),  # type: ignore[union-attr]
        getattr(config, "_attn_implementation", None), torch.is_grad_enabled(),
        [len(m._forward_hooks) for m in model.modules()],
    ]  # fmt: skip


def batches_of(sizes: Sequence[int], *shape: int, classes: int = 3) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(n, *shape, dtype=torch.float64), torch.randint(classes, (n,))) for n in sizes]


def tiny(family: str) -> Any:
    import transformers as hf

    torch.manual_seed(0)
    small = {"vocab_size": 23, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    wide = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    grouped = {**small, **wide, "num_key_value_heads": 1}
    if family == "gpt2":
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=16, **{**small, "pad_token_id": None})
        )
    if family == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**grouped))
    if family == "qwen2":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**grouped))
    return hf.BertForSequenceClassification(hf.BertConfig(num_labels=3, **small, **wide))


class Square(torch.autograd.Function):
    """As a kernel of one's own does it: vmap has no rule for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class Custom(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed, self.head, self.idle = nn.Embedding(7, 3, sparse=sparse), nn.Linear(3, 3), nn.Linear(2, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(Square.apply(self.embed(ids)))
