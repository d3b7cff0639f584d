"""A watched and an unwatched loop in one process that has imported nothing of ours before, as a program.

    python fresh.py NAME [NAME …]     probes and sinks by name, `late` for late imports
    python fresh.py NAME … -- NAME …  two such processes, forked before anything of ours is imported

Prints for each what differs, as a JSON list: weights, and the states of the three generators that a loop may draw from.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
from contract.apart import each_apart


def generators() -> dict[str, str]:
    states = {
        "random": repr(random.getstate()).encode(),
        "numpy": repr(np.random.get_state()[1:]).encode() + np.random.get_state()[1].tobytes(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def hashed_weights(model: nn.Module) -> str:
    weights = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()


def loop(names: list[str], *, watched: bool) -> dict[str, str]:
    """Order, noise and dropout each come from another generator, so that a draw from any of them is seen."""
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    model: nn.Module = nn.Sequential(
        nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 4)
    )
    if any(name.startswith("Adapter") for name in names):
        model = with_lora(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(48, 10, generator=torch.Generator().manual_seed(5))
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    w = watch(model, optimizer, names, [(x[:24], y[:24]), (x[24:], y[24:])]) if watched else None
    order = list(range(48))
    for step in range(6):
        random.shuffle(order)
        rows = torch.tensor(order[:16])
        noise = torch.from_numpy(np.random.normal(scale=0.01, size=(16, 10))).float()
        logits = model(x[rows] + noise)
        loss = F.cross_entropy(logits, y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if w is not None:
            w.log(loss=loss)
            w.batch((x[rows], y[rows]))
            w.examples(rows, logits, y[rows], groups=y[rows] % 2)
            if step == 2:
                w.end_epoch()
            if step == 4:
                w.save_state()
    if w is not None:
        w.end_epoch()
        w.close()
    return {"weights": hashed_weights(model), **generators()}


def with_lora(model: nn.Module) -> nn.Module:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0", "4"]))  # type: ignore[arg-type,return-value]


def watch(model: nn.Module, optimizer: torch.optim.Optimizer, names: list[str], data: list[Any]) -> Any:
    import learnscope as ls
    from contract.probes import build
    from contract.sinks import build as build_sink

    sinks: list[Any] = [build_sink(name) for name in names if name.endswith("Sink")]
    probes: list[Any] = [build(name) for name in names if name != "late" and not name.endswith("Sink")]
    if "late" in names:
        from contract.late import LateProbe, LateSink

        probes, sinks = [*probes, LateProbe()], [*sinks, LateSink()]
    return ls.watch(
        model, optimizer, probes=probes or None, sinks=sinks, holdout=data, train=data, test=data, strict=True
    )


def differences(names: list[str]) -> list[str]:
    watched = loop(names, watched=True)  # first, while nothing has been imported
    plain = loop(names, watched=False)
    return [name for name in plain if plain[name] != watched[name]]


if __name__ == "__main__":
    torch.set_num_threads(1)
    groups = [[name for name in group.split("\n") if name] for group in "\n".join(sys.argv[1:]).split("--")]
    print(json.dumps(each_apart(partial(differences, names) for names in groups)))
