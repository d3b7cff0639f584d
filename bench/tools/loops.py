"""Training loops that are watched by learnscope or by a peer, beside the same loop unwatched in the same process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Watcher(Protocol):
    """What a loop calls, as a user of that project writes it."""

    def before_step(self, loss: Tensor) -> None:
        """Between the backward and the optimizer's step."""

    def after_step(self, loss: Tensor) -> None: ...


@dataclass(frozen=True)
class Loop:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], Tensor]
    every: int = 1
    """Adapters are measured once in so many steps."""

    def step(self, number: int, watcher: Watcher | None = None) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(number)
        loss.backward()
        if watcher is not None:
            watcher.before_step(loss)
        self.optimizer.step()
        if watcher is not None:
            watcher.after_step(loss)


def gpt2(width: int = 128, batch_size: int = 8) -> Loop:
    """The loop of bench/watch.py: 2 layers, width 128, 1,000 tokens, 0.45 M parameters; batch 8 × 64."""
    from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": width, "n_head": 4, "n_positions": 64, "vocab_size": 1000}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(1000, (64, batch_size, 64), generator=torch.Generator().manual_seed(1))

    def loss(number: int) -> Tensor:
        batch = tokens[number % len(tokens)]
        value: Tensor = model(input_ids=batch, labels=batch).loss
        return value

    return Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss)


def mlp() -> Loop:
    """64-256-256-10, batch 64: a step takes about a millisecond."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    x, y = torch.randn(1024, 64), torch.randint(10, (1024,))

    def loss(number: int) -> Tensor:
        batch = slice(number % 16 * 64, number % 16 * 64 + 64)
        return nn.functional.cross_entropy(model(x[batch]), y[batch])

    return Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss)


def adapters(width: int = 512, batch_size: int = 2, every: int = 10) -> Loop:
    """A wider one with LoRA of rank 8 at all its linear layers, batch 2 × 64: eight modules, 512 × 512 the smallest."""
    from peft import LoraConfig, get_peft_model

    whole = gpt2(width, batch_size)
    targets = ["c_attn", "c_proj", "c_fc"]
    torch.manual_seed(0)
    model = get_peft_model(whole.model, LoraConfig(r=8, target_modules=targets, fan_in_fan_out=True))  # type: ignore[arg-type]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Loop(model, torch.optim.AdamW(trained, lr=1e-3), whole.loss, every)


def small_adapters() -> Loop:
    """LoRA on the GPT-2 of width 128, where decomposing the products costs little; measured at every step."""
    return adapters(width=128, batch_size=8, every=1)


LOOPS = {"gpt2": gpt2, "mlp": mlp, "adapters": adapters, "small_adapters": small_adapters}
PACKAGES = {
    "gpt2": ["transformers.models.gpt2.modeling_gpt2"],
    "mlp": [],
    "adapters": ["transformers.models.gpt2.modeling_gpt2", "peft"],
    "small_adapters": ["transformers.models.gpt2.modeling_gpt2", "peft"],
}
"""What each needs beside torch."""


def in_turns(watched: Loop, watcher: Watcher, plain: Loop, steps: int) -> tuple[float, float]:
    """Seconds of the watched and of the unwatched steps, which alternate, and alternate in who goes first."""
    seconds = {True: 0.0, False: 0.0}
    for number in range(steps):
        for is_watched in (True, False) if number % 2 else (False, True):
            start = time.perf_counter()
            if is_watched:
                watched.step(number, watcher)
            else:
                plain.step(number)
            seconds[is_watched] += time.perf_counter() - start
    return seconds[True], seconds[False]


def pair(one: float, other: float) -> float:
    """Of two ratios with the roles of the loops exchanged: no two loops are equally fast to the percent."""
    return math.sqrt(one * other)
