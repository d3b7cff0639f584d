"""Lightning with one line more: `callbacks=[LearnscopeCallback()]`.

    python examples/lightning_digits.py [--epochs 5]

Needs `pip install learnscope[lightning]`. The run is a folder in the trainer's log folder; its holdout is the trainer's
own validation set.
"""

from __future__ import annotations

import argparse

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from learnscope.integrations.lightning import LearnscopeCallback


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    L.seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels))
    training, held_out = torch.utils.data.random_split(data, [1500, 297])
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", enable_progress_bar=False, logger=L.pytorch.loggers.CSVLogger("."),
        accumulate_grad_batches=2, gradient_clip_val=1.0, callbacks=[callback := LearnscopeCallback()],
    )  # fmt: skip
    trainer.fit(Digits(), DataLoader(training, batch_size=25, shuffle=True), DataLoader(held_out, batch_size=99))

    run = callback.run
    print(run)
    print(run.frame("Loss", "val_loss")[["step", "value"]].to_string(index=False))
    for finding in run.findings():
        print(finding.severity, finding.title)


if __name__ == "__main__":
    main()
