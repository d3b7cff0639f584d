"""A training under a real trainer, watched and unwatched, as a program.

    python trainers.py FOLDER NAME [NAME …]     "careless NAME": with a probe that draws behind the guard's back

Both are forked from one process that has imported the trainers' packages and nothing of ours. Prints what differs at
the end, as a JSON list for each name: weights, the states of the three generators that a loop may draw from, `nothing
was recorded`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract import fresh
from seeds import tiny

STEPS = 5
PROBES = ("GradientFlow", "ParameterChange", "LearningRate", "Momentum", "WeightSpectrum", "Holdout")
X = torch.randn(48, 5, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long()


class Watching:
    """Opens a session with the first optimizer, if it is to; late imports draw in each part of a measurement."""

    def __init__(self, *, asked: bool, careless: bool = False) -> None:
        self.asked, self.careless = asked, careless
        self.w: Any = None
        self.records = 0

    def open(self, model: nn.Module, optimizer: Any, holdout: Any) -> None:
        if not self.asked:
            return
        import learnscope as ls

        self.w = ls.watch(model, optimizer, holdout=holdout, **self.options())

    def options(self) -> dict[str, Any]:
        import learnscope as ls
        from contract.late import CarelessProbe, LateProbe, LateSink
        from contract.probes import build

        probes = [*(build(name) for name in PROBES), LateProbe(), *([CarelessProbe()] if self.careless else [])]
        return {"probes": probes, "sinks": [ls.ConsoleSink(seconds=0.0), LateSink()], "strict": True}

    def close(self) -> None:
        if self.w is not None:
            self.w.close()
            self.records = len(list(self.w.run.records("GradientFlow")))


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 4))


def raw(watching: Watching, folder: Path) -> nn.Module:
    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watching.open(model, optimizer, [(X, Y)])
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    watching.close()
    return model


def accelerate(watching: Watching, folder: Path, *, one_line: bool = False) -> nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small_net()
    parts = model, torch.optim.AdamW(model.parameters(), lr=1e-2), DataLoader(TensorDataset(X, Y), 4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(*parts)
    if one_line and watching.asked:
        from learnscope.integrations.accelerate import watch_accelerate

        watching.w = watch_accelerate(accelerator, model, optimizer, holdout=loader, **watching.options())
    elif not one_line:
        watching.open(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    watching.close()
    return model


def lightning(watching: Watching, folder: Path, *, one_line: bool = False) -> nn.Module:
    import lightning as package

    class Module(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def training_step(self, batch: Any, _index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Callback(package.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            watching.open(module.net, trainer.optimizers, TensorDataset(X, Y))

        def on_train_end(self, trainer: Any, module: Any) -> None:
            watching.close()

    callbacks: list[Any] = [] if one_line else [Callback()]
    if one_line and watching.asked:
        from learnscope.integrations.lightning import LearnscopeCallback

        callbacks = [LearnscopeCallback(**watching.options())]
    module = Module()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = package.Trainer(
        max_steps=STEPS, accelerator="cpu", gradient_clip_val=0.1, accumulate_grad_batches=2, default_root_dir=folder,
        callbacks=callbacks, **quiet,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True))
    if one_line and watching.asked:
        watching.w = callbacks[0].w
        watching.close()
    return module


def callback(watching: Watching) -> Any:
    """For the trainers of transformers and of TRL."""
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            batches = tiny.token_batches(2)
            if getattr(given["model"].config, "num_labels", None) == 1:  # a reward: one number for each text
                batches = [{**batch, "labels": torch.arange(len(batch["input_ids"])).float()} for batch in batches]
            watching.open(given["model"], given["optimizer"], batches)

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            watching.close()

    return Callback()


def arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "max_steps": STEPS, "per_device_train_batch_size": 2, "learning_rate": 1e-2,
        "gradient_accumulation_steps": 2, "report_to": [], "use_cpu": True, "save_strategy": "no",
        "disable_tqdm": True, "logging_steps": 1, "seed": 3,
    }  # fmt: skip


def of_trl(folder: Path) -> dict[str, Any]:
    return {**arguments(folder), "bf16": False, "gradient_checkpointing": False}


def pairs() -> Any:
    from datasets import Dataset

    sums = [(a, b) for a in range(4) for b in range(4)]
    return Dataset.from_list(
        [{"prompt": f"{a}+{b}=", "chosen": f"{a + b}", "rejected": f"{a + b + 1}"} for a, b in sums]
    )


def trainer(watching: Watching, folder: Path) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    model = tiny.language_model()
    rows = [{key: value[row] for key, value in batch.items()} for batch in tiny.token_batches(12) for row in (0, 1)]
    kept = TrainingArguments(**arguments(folder))
    Trainer(model=model, args=kept, train_dataset=rows, callbacks=[callback(watching)]).train()
    return model


def sft(watching: Watching, folder: Path) -> nn.Module:
    from trl import SFTConfig, SFTTrainer

    texts = pairs().map(lambda row: {"text": row["prompt"] + row["chosen"]}, remove_columns=pairs().column_names)
    return trained(SFTTrainer, SFTConfig(**of_trl(folder)), tiny.language_model(), texts, watching)


def dpo(watching: Watching, folder: Path) -> nn.Module:
    from trl import DPOConfig, DPOTrainer

    model = tiny.language_model()
    reference = tiny.language_model()
    reference.load_state_dict(model.state_dict())
    return trained(DPOTrainer, DPOConfig(**of_trl(folder)), model, pairs(), watching, ref_model=reference)


def reward(watching: Watching, folder: Path) -> nn.Module:
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    settings = tiny.language_model().config
    settings.num_labels = 1
    model = LlamaForSequenceClassification(settings)
    return trained(RewardTrainer, RewardConfig(**of_trl(folder)), model, pairs(), watching)


def grpo(watching: Watching, folder: Path) -> nn.Module:
    from trl import GRPOTrainer

    options = tiny.grpo_arguments(folder, STEPS)
    return trained(GRPOTrainer, options, tiny.language_model(), tiny.prompts(), watching, reward_funcs=tiny.reward)


def trained(kind: Any, options: Any, model: nn.Module, data: Any, watching: Watching, **more: Any) -> nn.Module:
    own = {"processing_class": tiny.tokenizer(), "callbacks": [callback(watching)], **more}
    kind(model=model, args=options, train_dataset=data, **own).train()
    return model


TRAINERS: dict[str, tuple[Callable[[Watching, Path], nn.Module], tuple[str, ...]]] = {
    "raw loop": (raw, ()),
    "accelerate": (accelerate, ("accelerate",)),
    "lightning": (lightning, ("lightning",)),
    "accelerate, one line": (partial(accelerate, one_line=True), ("accelerate",)),
    "lightning, one line": (partial(lightning, one_line=True), ("lightning",)),
    "transformers": (trainer, ("transformers.trainer",)),
    "TRL SFT": (sft, ("datasets", "trl.trainer.sft_trainer")),
    "TRL DPO": (dpo, ("datasets", "trl.trainer.dpo_trainer")),
    "TRL reward": (reward, ("datasets", "trl.trainer.reward_trainer")),
    "TRL GRPO": (grpo, ("datasets", "trl.trainer.grpo_trainer")),
}
"""How each trains, and the packages that are there before."""


def in_child(name: str, folder: Path, *, watched: bool, careless: bool = False) -> dict[str, Any]:
    """The weights, generators and number of records at the end of a training in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            random.seed(1), np.random.seed(2), torch.manual_seed(3)
            watching = Watching(asked=watched, careless=careless)
            model = TRAINERS[name][0](watching, folder)
            found = {"weights": fresh.hashed_weights(model), **fresh.generators(), "records": watching.records}
            os.write(writing, json.dumps(found).encode())
            sys.stdout.flush()
            os._exit(0)
        finally:  # after an error, before the process would go on as its parent
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, f"the {'watched' if watched else 'unwatched'} training failed"
    found: dict[str, Any] = json.loads(answer)
    return found


def differences(name: str, folder: Path) -> list[str]:
    careless, trainer = name.startswith("careless "), name.removeprefix("careless ")
    watched = in_child(trainer, folder / "watched", watched=True, careless=careless)
    plain = in_child(trainer, folder / "plain", watched=False)
    differing = [key for key in plain if key != "records" and plain[key] != watched[key]]
    return differing if watched["records"] >= STEPS else [*differing, "nothing was recorded"]


def main(folder: Path, *names: str) -> None:
    for name in names:
        for package in TRAINERS[name.removeprefix("careless ")][1]:
            __import__(package)
    assert "learnscope" not in sys.modules
    print(json.dumps({name: differences(name, folder) for name in names}))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), *sys.argv[2:])
