"""One of two ranks of a training under DistributedDataParallel: `python hf_ranks.py RANK PORT FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
if __name__ == "__main__":  # as launchers do, before anything else; not where doctests are looked for
    RANK, PORT, FOLDER = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    os.environ |= {
        "RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT,
    }  # fmt: skip

import torch
from torch import Tensor, nn

import learnscope as ls
from integrations.hf_small import trainer_on
from learnscope.probes.outputs.loss import Loss

BROKEN = 9


class Breaks(nn.Module):
    """Its loss is not finite on rank 0 alone, at one call; the gradients of all ranks are their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(4, 3), 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.inner(x)
        self.calls += self.training and torch.is_grad_enabled()
        loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss * torch.nan if self.calls == BROKEN and RANK == 0 else loss, "logits": logits}


def main() -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    rows = [{"x": row, "labels": (row[0] > 0).long()} for row in x]
    torch.manual_seed(0)
    trainer = trainer_on(Breaks(), FOLDER, train=rows, max_steps=200, ddp_backend="gloo")
    callback = ls.watch_trainer(trainer, probes=[Loss(), ls.GradientFlow(every=1)], stop_on=("nonfinite",))
    trainer.train()
    print(f"\nrank {RANK}: {trainer.state.global_step} steps, {len(callback.folders)} runs, {trainer.args.world_size}")


if __name__ == "__main__":
    main()
