"""A loop with Accelerate and one line more: `w = watch_accelerate(accelerator, model, optimizer, …)`.

    python examples/accelerate_digits.py [--epochs 5]

Needs `pip install accelerate`. The run is a folder in the accelerator's project folder, and goes on after `load_state`.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from learnscope.integrations.accelerate import watch_accelerate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images).float() / 16, torch.tensor(labels)
    training, held_out = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir="project")
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(training, batch_size=25, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    w = watch_accelerate(accelerator, model, optimizer, holdout=held_out)
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state("project/last")  # with what the session needs to go on
    accelerator.end_training()

    print(w.run)
    print(w.run.frame("Holdout", "holdout_accuracy")[["step", "value"]].to_string(index=False))


if __name__ == "__main__":
    main()
