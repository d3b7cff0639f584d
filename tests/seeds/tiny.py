"""What the documents leave open, as small as it gets: a language model, a reinforcement-learning run, a W&B run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

CHARACTERS = "0123456789+-*= "
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


def tokenizer() -> Any:
    """One token a character; padded on the left, as generation wants it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        padding_side="left",
    )  # fmt: skip


def language_model(**options: Any) -> Any:
    """Two Llama blocks with attention dropout, which a disturbed random state shows at once."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": len(SPECIAL) + len(CHARACTERS), "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
    }  # fmt: skip
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **tokens, "attention_dropout": 0.2, **options}))


def token_batches(count: int, rows: int = 2, length: int = 6) -> list[dict[str, Tensor]]:
    """Batches of random tokens; the second row is padded, so that a mask that is ignored shows."""
    generator = torch.Generator().manual_seed(7)
    batches = []
    for _ in range(count):
        ids = torch.randint(4, 4 + len(CHARACTERS), (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, -2:] = 0
        ids = ids.masked_fill(mask == 0, 0)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return batches


def prompts() -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(4) for b in range(4)])


def reward(completions: list[str], **columns: Any) -> list[float]:
    """More for every digit, so that completions of one prompt differ in what they earn."""
    return [float(sum(character.isdigit() for character in text)) for text in completions]


def grpo_arguments(folder: Path, steps: int, **options: Any) -> Any:
    from trl import GRPOConfig

    small = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 3, "max_steps": steps}
    quiet = {
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "logging_strategy": "steps",
    }
    plain = {
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "learning_rate": 1e-3,
        "seed": 3,
        "lr_scheduler_type": "constant",
    }
    return GRPOConfig(output_dir=str(folder), **{**small, **quiet, **plain, **options})


@contextmanager
def offline_wandb(folder: Path) -> Iterator[Any]:
    """A real W&B run that keeps everything in `folder`; its summary holds the last value logged under each name."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    homes = {f"WANDB_{kind}_DIR": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    with mock.patch.dict(os.environ, {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", **homes}):
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True)
        run = wandb.init(mode="offline", dir=folder, project="documents", settings=settings)
        try:
            yield run
        finally:
            run.finish()
            wandb.teardown()
