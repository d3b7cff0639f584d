"""Loops that belong to a trainer: the session is opened, fed and closed by a callback."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from clients.account import Account


class Words(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(1, 30, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def hugging_face(account: Account, folder: Path) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Watching(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            account.watch(kwargs["model"], kwargs["optimizer"])

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            account.given(kwargs["optimizer"])  # clipped already

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
            if "loss" in logs:  # after every step; the last call has the mean of all
                account.took(loss=logs["loss"])
                account.log(loss=logs["loss"])

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 12, "vocab_size": 30, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4,
        learning_rate=0.05, max_grad_norm=1.0, logging_steps=1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, lr_scheduler_type="cosine", warmup_steps=2, seed=3, logging_nan_inf_filter=False,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[Watching()]).train()
    return model


def lightning(account: Account, folder: Path) -> nn.Module:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Dropout(0.2), nn.Linear(10, 3))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    class Watching(L.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            account.watch(module.net, trainer.optimizers)

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            account.given(optimizer)  # there is no clip here

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            account.took(loss=outputs["loss"])
            account.log(loss=outputs["loss"])

    x = torch.randn(32, 4)
    module = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, callbacks=[Watching()],
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True))
    return module
