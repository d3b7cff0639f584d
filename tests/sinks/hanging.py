"""A loop whose sink hangs or is slow, in a process that ends in some way, as a program.

python hanging.py signal|exit|memory|fork FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import learnscope as ls


class Hanging:
    def write(self, record: ls.Record) -> None:
        time.sleep(3600)

    def close(self) -> None:
        time.sleep(3600)


class Slow:
    """Notes what it was given in a file, after a while."""

    def open(self, opening: object) -> None:
        """What it needs is there."""

    def write(self, record: ls.Record) -> None:
        time.sleep(0.02)
        with Path("delivered").open("a") as file:
            file.write(f"{record.step}\n")

    def close(self) -> None:
        with Path("closed").open("a") as file:
            file.write("1")


def main(way: str, folder: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink = ls.Queued(Hanging(), patience=0.5) if way == "signal" else Slow()
    run = None if way == "memory" else folder
    w = ls.watch(model, optimizer, run=run, probes=[ls.LearningRate(every=1)], sinks=[sink])
    for step in range(1, 13):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        if way == "fork" and step == 6:
            child = os.fork()
            if child == 0:  # it goes on with its copy of the loop, and ends
                for _ in range(3):
                    optimizer.step()
                w.close()
                sys.exit(0)
            os.waitpid(child, 0)
    if way == "signal":
        print("ready", flush=True)
        with w:
            time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
