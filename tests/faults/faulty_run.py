"""A watched training to which one thing happens, drawn by a seed: its step, the probes and the sizes.

    python faulty_run.py KIND SEED FOLDER

Prints the number of each step when it is over. At the end it trains once more, unwatched, and prints what differs, as a
JSON list: weights, and the states of the generators.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NO_DISK = 77
"""The exit status where the system allows no disk of its own."""
ENDLESS = ("SIGTERM", "SIGKILL")
FEATURES, CLASSES = 6, 3


@dataclass(frozen=True)
class Plan:
    """What a seed draws. The thing happens after step `at`, and is over after step `until` if it can be."""

    kind: str
    seed: int
    steps: int
    at: int
    until: int
    width: int
    batch: int
    probes: tuple[tuple[str, int], ...]
    state_every: int
    epoch_every: int
    adam: bool
    within: bool
    """Whether the loop stands in `with`; else it is closed by hand, or by nobody if it does not come to that."""
    share: float
    """Between 0 and 1, to choose with."""
    write_every: int
    """Steps of which records may wait before they are written."""

    def chooses(self, *options: Any) -> Any:
        return options[int(self.share * len(options))]


POOL = ("GradientFlow", "ParameterChange", "Holdout", "ExampleLedger", "Momentum", "on disk")


def draw(kind: str, seed: int) -> Plan:
    chance = random.Random(f"{kind} {seed}")
    waits = kind != "truncated file"  # of which there would be nothing yet
    steps = chance.randrange(6, 25)
    at = chance.randrange(1, steps)
    chosen = chance.sample(POOL, chance.randrange(1, len(POOL)))
    return Plan(
        kind, seed, steps=steps, at=at, until=chance.choice([steps + 1, chance.randrange(at + 1, steps + 2)]),
        width=chance.choice([2, 16, 64, 400]), batch=chance.randrange(1, 9),
        probes=tuple((name, chance.randrange(1, 4)) for name in chosen),
        state_every=chance.randrange(1, 8), epoch_every=chance.randrange(2, 8), adam=chance.random() < 0.5,
        within=chance.random() < 0.5, share=chance.random(), write_every=chance.choice([1, 3, 50]) if waits else 1,
    )  # fmt: skip


def model_of(plan: Plan) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(FEATURES, plan.width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(plan.width, CLASSES))
    return model, (torch.optim.Adam if plan.adam else torch.optim.SGD)(model.parameters(), lr=0.01)


def watch(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> Any:
    import learnscope as ls

    make = {name: getattr(ls, name) for name in POOL if name != "on disk"}
    make["on disk"] = lambda every: ls.ParameterChange(every=every, snapshot_device="disk")
    names = {name: every for name, every in plan.probes if name != "Momentum" or plan.adam}
    probes = [ls.LearningRate(every=1), ls.Loss(), *(make[name](every=every) for name, every in names.items())]
    data = [(torch.zeros(4, FEATURES), torch.zeros(4).long())]
    return ls.watch(model, optimizer, run=folder, probes=probes, holdout=data, write_every=plan.write_every)


def train(plan: Plan, folder: Path | None) -> dict[str, str]:
    """The weights and the states of the generators at the end; with a folder, watched and struck."""
    random.seed(plan.seed), np.random.seed(plan.seed), torch.manual_seed(plan.seed)
    model, optimizer = model_of(plan)
    if folder is None:
        for _ in range(plan.steps):
            step(plan, model, optimizer)
    else:
        w = watch(plan, model, optimizer, folder)
        if plan.within:
            with w:
                watched_loop(plan, model, optimizer, w, folder)
        else:
            watched_loop(plan, model, optimizer, w, folder)
            w.close()
    return state_of(model)


def step(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    ids = torch.tensor(random.sample(range(plan.batch), plan.batch))
    x = torch.randn(plan.batch, FEATURES) + float(np.random.normal())
    y = ids % CLASSES
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return ids, logits, y, loss


def watched_loop(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, w: Any, folder: Path) -> None:
    from strikes import STRIKES

    strike, number = STRIKES[plan.kind](plan, w, folder), 0
    while number < plan.steps or plan.kind in ENDLESS:
        number += 1
        ids, logits, y, loss = step(plan, model, optimizer)
        w.log(loss=loss)
        w.examples(ids, logits, y)
        if number % plan.epoch_every == 0:
            w.end_epoch()
        if number % plan.state_every == 0:
            w.save_state()
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        if number == plan.at:
            strike.begin(model, optimizer)
        if number == plan.until:
            strike.end()


def state_of(model: nn.Module) -> dict[str, str]:
    parts = {
        "weights": b"".join(p.detach().numpy().tobytes() for p in model.parameters()),
        "random": repr(random.getstate()).encode(),
        "numpy": np.random.get_state()[1].tobytes() + repr(np.random.get_state()[2:]).encode(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    return {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}


def main(kind: str, seed: str, folder: Path) -> None:
    from strikes import DISK

    from faults import private

    plan, place = draw(kind, int(seed)), folder
    if kind == "full disk":
        disk = folder.with_name("disk")
        disk.mkdir()
        try:
            private.mount_small_disk(disk, DISK)
        except OSError as error:
            print(f"no disk of its own: {error}")
            sys.exit(NO_DISK)
        place, tempfile.tempdir = disk / "run", str(disk)
    elif kind == "read-only folder":
        private.obey_permissions()
    try:
        watched = train(plan, place)
    finally:
        if place != folder:
            shutil.copytree(place, folder)  # this disk goes with the process
    plain = train(plan, None)
    print(json.dumps([name for name in plain if plain[name] != watched[name]]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    torch.set_num_threads(1)
    warnings.simplefilter("always")
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
