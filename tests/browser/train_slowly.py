"""A small training in a process of its own: python train_slowly.py FOLDER STEPS PAUSE [view]"""

from __future__ import annotations

import sys
import time

import torch
from torch.nn import functional

import learnscope as ls


def main(folder: str, steps: int, pause: float, *, view: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    inputs = torch.randn(256, 20)
    targets = inputs[:, :3].argmax(1)
    probes = [ls.Loss(), ls.GradientFlow(every=2)]
    with ls.watch(model, optimizer, run=folder, probes=probes, write_seconds=0.3, view=view) as w:
        for _ in range(steps):
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            time.sleep(pause)
    print("losses", float(loss.detach()).hex(), flush=True)
    if view:
        sys.stdin.read()  # the page lives as long as this process


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), view="view" in sys.argv[4:])
