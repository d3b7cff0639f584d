"""A watched training that loses a step, in the way named by the first argument; prints what is to be on disk."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import learnscope as ls


class Lossy:
    """A small network whose gradients break at one step, first in one layer: `bad` divides by zero in backward."""

    def __init__(self, seed: int, folder: Path, *, fused: bool = False) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(1000 + seed)
        width = 4 + seed % 5
        self.layers = nn.ModuleList(
            [nn.Linear(6, width), *(nn.Linear(width, width) for _ in range(2)), nn.Linear(width, 3)]
        )
        self.model = nn.ModuleDict({"layers": self.layers})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=fused)
        self.bad_step = 2 + seed % 11
        self.bad_layer = seed % 4
        self.ids = torch.zeros(0)
        self.batch_number = 0
        self.w = ls.watch(self.model, self.optimizer, run=folder)

    @property
    def breaks(self) -> bool:
        return self.batch_number == self.bad_step

    def batch(self) -> tuple[Tensor, Tensor]:
        """Another batch, with the ids of its examples."""
        self.batch_number += 1
        self.ids = torch.randint(0, 10_000, (8,), generator=self.generator)
        return torch.randn(8, 6, generator=self.generator), torch.randint(0, 3, (8,), generator=self.generator)

    def loss(self, *, scale: float = 1.0) -> Tensor:
        x, y = self.batch()
        for place, layer in enumerate(self.layers):
            x = layer(x)
            if self.breaks and place == self.bad_layer:
                x = x + (x * 0).abs().sqrt()  # 0, whose derivative is 0 · ∞
            x = torch.tanh(x) if place < 3 else x
        self.w.examples(self.ids, x, y)
        loss = nn.functional.cross_entropy(x, y)
        self.w.log(loss=loss)
        if self.breaks:
            # every gradient before the bad layer is NaN; in backward order the first is its bias
            expected = {"step": self.bad_step, "tensor": f"layers.{self.bad_layer}.bias", "loss": loss.item()}
            print(repr({**expected, "rows": self.ids.tolist()}), flush=True)
        return loss * scale

    def clip(self) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


def skipped(lossy: Lossy) -> None:
    """The loop leaves the step out, clears the gradients and goes on."""
    for _ in range(20):
        lossy.loss().backward()
        if torch.isfinite(lossy.clip()):
            lossy.optimizer.step()
        lossy.optimizer.zero_grad()
    lossy.w.close()


def asserted(lossy: Lossy) -> None:
    for _ in range(20):
        lossy.optimizer.zero_grad()
        lossy.loss().backward()
        assert torch.isfinite(lossy.clip()), "the gradient norm is not finite"
        lossy.optimizer.step()


def scaled(lossy: Lossy) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(20):
        lossy.optimizer.zero_grad()
        scaler.scale(lossy.loss()).backward()
        scaler.step(lossy.optimizer)
        scaler.update()
    lossy.w.close()


def raises(lossy: Lossy) -> None:
    """An error between backward and step, without a clip."""
    for _ in range(20):
        lossy.optimizer.zero_grad()
        lossy.loss().backward()
        if lossy.breaks:
            raise ValueError("something else went wrong")
        lossy.optimizer.step()


def _signalled(lossy: Lossy, number: int) -> None:
    for _ in range(20):
        lossy.optimizer.zero_grad()
        lossy.loss().backward()
        if lossy.breaks:
            os.kill(os.getpid(), number)
            sum(range(10**6))
        lossy.optimizer.step()


def interrupted(lossy: Lossy) -> None:
    with lossy.w:
        _signalled(lossy, signal.SIGINT)


def terminated(lossy: Lossy) -> None:
    _signalled(lossy, signal.SIGTERM)


def _after_the_clip(lossy: Lossy, end: Any) -> None:
    for _ in range(20):
        lossy.optimizer.zero_grad()
        lossy.loss().backward()
        if not torch.isfinite(lossy.clip()):
            end()
        lossy.optimizer.step()


def killed(lossy: Lossy) -> None:
    _after_the_clip(lossy, lambda: os.kill(os.getpid(), signal.SIGKILL))


def exits(lossy: Lossy) -> None:
    _after_the_clip(lossy, lambda: os._exit(3))


if __name__ == "__main__":
    case, seed, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whoever started us may ignore it
    fused = case == "scaled_fused"
    globals()["scaled" if fused else case](Lossy(seed, folder, fused=fused))
