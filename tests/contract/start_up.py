"""Opens sessions in a process of its own, and prints which large modules that has imported, besides torch itself."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

LARGE = (
    "torch._dynamo", "torch._inductor", "torch._export", "torch.onnx", "torch.distributed.fsdp",
    "torch.distributed.tensor", "sympy", "pandas", "pyarrow", "duckdb", "matplotlib", "scipy", "sklearn", "tensorboard",
    "transformers", "tokenizers", "peft", "datasets", "accelerate", "lightning", "torchvision", "torchao", "IPython",
)  # fmt: skip


def imported() -> set[str]:
    return {name for name in LARGE if name in sys.modules}


def watched(folder: Path, optimizer_of: Any) -> list[str]:
    """What opening a session, training and closing it imports; of an optimizer, after it was made."""
    model = nn.Linear(3, 2)
    optimizer = None if optimizer_of is None else optimizer_of(model.parameters())
    before = imported()
    import learnscope as ls

    w = ls.watch(model, optimizer, run=folder)
    for _ in range(100):
        model.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        if optimizer is None:
            w.step()
        else:
            optimizer.step()
        w.log(loss=loss)
    w.close()
    return sorted(imported() - before)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        found = {
            name: watched(Path(scratch, name), make) for name, make in (("none", None), ("AdamW", torch.optim.AdamW))
        }
    print(json.dumps(found))
