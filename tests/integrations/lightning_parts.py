"""A Lightning module and its trainer, as the tests of Lightning use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn import functional as F

from integrations import raw
from learnscope.integrations.lightning import LearnscopeCallback

QUIET: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


class Module(lightning.LightningModule):
    """Without a forward of its own, as many are."""

    def __init__(self) -> None:
        super().__init__()
        self.net = raw.net()

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=raw.RATE)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, raw.DECAY)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}


def trainer(folder: Path, callback: LearnscopeCallback | None, *callbacks: Any, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "max_epochs": 2, "logger": False, "enable_checkpointing": False, "default_root_dir": folder,
        "gradient_clip_val": raw.CLIP, "accumulate_grad_batches": raw.PARTS,
    }  # fmt: skip
    own = [callback] if callback is not None else []
    return lightning.Trainer(**{**defaults, **QUIET, **options}, callbacks=[*own, *callbacks])


def watching(**options: Any) -> LearnscopeCallback:
    return LearnscopeCallback(**{"probes": raw.probes(), "strict": True, **options})


def run_of(callback: LearnscopeCallback) -> Any:
    assert callback.w is not None
    return callback.w.run
