"""A training as a program, which has imported nothing of ours before the one line: prints weights and generators.

python hf_fresh.py NAME FOLDER [watched]
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from seeds import tiny

QUIET = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_steps": 2, "bf16": False}
OPTIONS = {
    "max_steps": 12, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-2,
    "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 6, "seed": 1,
}  # fmt: skip


def made(name: str, folder: str) -> Any:
    from datasets import Dataset

    torch.manual_seed(0)
    rows = [{"text": f"{a}+{b}={a + b}"} for a in range(6) for b in range(6)]
    data, held_out = Dataset.from_list(rows[6:]), Dataset.from_list(rows[:6])
    common: dict[str, Any] = {"model": tiny.language_model(), "processing_class": tiny.tokenizer()}
    if name == "SFTTrainer":
        from trl import SFTConfig, SFTTrainer

        args = SFTConfig(output_dir=folder, max_length=12, gradient_checkpointing=False, **QUIET, **OPTIONS)
        return SFTTrainer(args=args, train_dataset=data, eval_dataset=held_out, **common)
    if name == "GRPOTrainer":
        from trl import GRPOConfig, GRPOTrainer

        more = {"num_generations": 4, "max_completion_length": 3, "gradient_checkpointing": False}
        prompts = tiny.prompts()
        return GRPOTrainer(
            args=GRPOConfig(output_dir=folder, **more, **QUIET, **OPTIONS), reward_funcs=tiny.reward,
            train_dataset=prompts, eval_dataset=prompts.select(range(4)), **common,
        )  # fmt: skip
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    tokenizer = common["processing_class"]
    tokens = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in rows]
    return Trainer(
        args=TrainingArguments(output_dir=folder, **QUIET, **OPTIONS), train_dataset=tokens[6:],
        eval_dataset=tokens[:6], data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False), **common,
    )  # fmt: skip


def main() -> None:
    name, folder, *watched = sys.argv[1:]
    trainer = made(name, folder)
    assert not any(module.partition(".")[0] == "learnscope" for module in sys.modules)
    if watched:
        import learnscope as ls

        ls.watch_trainer(trainer)
    trainer.train()
    parts = {
        "weights": b"".join(value.numpy().tobytes() for value in trainer.model.state_dict().values()),
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()).encode(),
        "python": repr(random.getstate()).encode(),
        "logs": repr([entry.get("loss") for entry in trainer.state.log_history]).encode(),
    }
    print("\n" + json.dumps({part: hashlib.sha256(content).hexdigest() for part, content in parts.items()}))


if __name__ == "__main__":
    main()
