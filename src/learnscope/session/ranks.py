"""Which process of a distributed training records: rank 0. The others count steps, and record nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from learnscope.core.subject import Subject
from learnscope.run import open_run
from learnscope.session.bound import Bound
from learnscope.session.engine import Engine
from learnscope.session.loop import Loop
from learnscope.store.backend import MemoryBackend


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of processes: of torch.distributed, else as a launcher says; else (0, 1)."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and size.isdecimal() and int(size) > 1:
        return int(rank), int(size)
    return 0, 1


def is_silent(run: str | Path | None) -> bool:
    """Whether another process writes this run. A run in memory is each process's own."""
    return run is not None and rank_and_size()[0] != 0


def silent_engine(model: nn.Module, optimizers: list[Optimizer], *, strict: bool) -> Engine:
    """An engine without probes, data and sinks, whose run is an empty one in memory."""
    return Engine(Subject(model, optimizers), [], MemoryBackend(), source="watch", provides=(), strict=strict)


def first_step(run: str | Path, *, resume: bool, step: int | None) -> int:
    """The step at which rank 0 goes on; 0 if it is not named and the folder cannot be seen from here."""
    if step is None and resume and (Path(run) / "run.json").exists():
        return open_run(run).last_step
    return step or 0


class SilentLoop(Loop):
    """The loop of a rank that records nothing: it counts the same steps and epochs as rank 0's."""

    listens = False

    def __init__(self, engine: Engine, *, steps: int, epoch: int, clock: Optimizer | None) -> None:
        super().__init__(engine, steps=steps, epoch=epoch, clock=clock)
        self._backwards.close()  # no hooks on parameters
        self._calls.close()
        self._attempts.close()
        rank, size = rank_and_size()
        note = f"rank {rank} of {size} records nothing: rank 0 does"
        engine.backend.put_manifest(engine.backend.manifest() | {"silent": note})

    def hand_over(self, **content: Any) -> None:
        pass

    def log(self, logged: Mapping[str, Any]) -> None:
        pass

    def end_epoch(self) -> None:
        self.settle()
        self.epoch += 1

    def due_probes(self) -> Sequence[Bound]:
        return ()

    def optimizer_comes(self, *, begins_anew: bool) -> None:
        pass

    def step_opened(self) -> None:
        pass

    def gradients_known(self) -> None:
        pass

    def step_ended(self) -> None:
        if self._ends.skipped:
            self.skipped_steps += 1
        else:
            self._count.steps += 1
        self._ends.forget()
        self.sizes.clear()
