"""Opens sessions, each in a process of its own, and prints which large modules that has imported, besides torch itself.

    python start_up.py WAY [WAY …]

Prints for each way, as JSON, the large modules and how many modules there are more.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from contract.apart import each_apart

LARGE = (
    "torch._dynamo", "torch._inductor", "torch._export", "torch.onnx", "torch.distributed.fsdp",
    "torch.distributed.tensor", "sympy", "pandas", "pyarrow", "duckdb", "matplotlib", "scipy", "sklearn", "tensorboard",
    "transformers", "tokenizers", "peft", "datasets", "accelerate", "lightning", "torchvision", "torchao", "IPython",
)  # fmt: skip


def imported() -> set[str]:
    return {name for name in LARGE if name in sys.modules}


def watched(folder: Path, optimizer_of: Any, *, holdout: bool = False) -> tuple[list[str], int]:
    """What opening a session, training and closing it imports, and how many modules; an optimizer is made before.

    With holdout data, they are evaluated, and examples are followed.
    """
    model = nn.Linear(3, 2)
    optimizer = None if optimizer_of is None else optimizer_of(model.parameters())
    before, loaded = imported(), len(sys.modules)
    import learnscope as ls

    y = torch.tensor([0, 1, 1, 0])
    given: dict[str, Any] = {"holdout": [(torch.ones(4, 3), y)], "probes": [ls.Holdout(every=50), ls.Loss()]}
    w = ls.watch(model, optimizer, run=folder, **(given if holdout else {}))
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
    return sorted(imported() - before), len(sys.modules) - loaded


def opened(way: str) -> tuple[list[str], int]:
    with tempfile.TemporaryDirectory() as scratch:
        optimizer = torch.optim.AdamW if "AdamW" in way else None
        return watched(Path(scratch, "run"), optimizer, holdout="holdout" in way)


if __name__ == "__main__":
    print(json.dumps(each_apart(partial(opened, way) for way in sys.argv[1:])))
