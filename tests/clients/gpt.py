"""A small GPT whose forward returns logits and loss, trained with accumulation, clipping and a schedule of its own."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.account import Account

VOCABULARY, CONTEXT, WIDTH = 17, 8, 16
STEPS, WARM_UP, RATE, LOWEST = 6, 2, 3e-3, 3e-4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(CONTEXT, WIDTH),
                "h": nn.ModuleList([Block(), Block()]),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.transformer["wte"](idx) + self.transformer["wpe"](torch.arange(idx.shape[1]))
        for block in self.transformer["h"]:  # type: ignore[union-attr]
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        decayed = [p for p in self.parameters() if p.ndim >= 2]
        others = [p for p in self.parameters() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        more = {"fused": False} if "fused" in inspect.signature(torch.optim.AdamW).parameters else {}
        return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), **more)


def rate_at(iteration: int) -> float:
    """Linear warm-up, then a cosine."""
    if iteration < WARM_UP:
        return RATE * (iteration + 1) / (WARM_UP + 1)
    return LOWEST + 0.5 * (1 + math.cos(math.pi * (iteration - WARM_UP) / (STEPS - WARM_UP))) * (RATE - LOWEST)


def get_batch() -> tuple[Tensor, Tensor]:
    starts = torch.randint(VOCABULARY, (4, 1))
    rows = (starts + torch.arange(CONTEXT + 1)) % VOCABULARY
    return rows[:, :-1], rows[:, 1:]


def train(account: Account, *, backend: str | None = None, accumulation: int = 3) -> nn.Module:
    model: Any = GPT()
    optimizer = model.configure_optimizers()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    if backend is not None:
        model = torch.compile(model, backend=backend)
    account.watch(model, optimizer)
    x, y = get_batch()
    for iteration in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(iteration)
        for _ in range(accumulation):
            _, loss = model(x, y)
            loss = loss / accumulation
            x, y = get_batch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        account.given(optimizer, clipped_from=norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        account.took(loss=loss.item() * accumulation)
        account.log(loss=loss.item() * accumulation)
    return model
