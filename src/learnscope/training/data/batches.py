"""Token ids as batches: rows padded together, and the held-out examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Row = tuple[list[int], list[int]]
"""Ids and labels of the same length; a label of -100 is ignored by the loss."""


def collated(rows: Sequence[Row], pad: int) -> dict[str, Tensor]:
    """Padded on the right."""
    ids, labels = ([torch.tensor(part) for part in parts] for parts in zip(*rows, strict=True))
    return {
        "input_ids": pad_sequence(ids, True, pad),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], True),
        "labels": pad_sequence(labels, True, -100),
    }


def holdout_batches(trainer: Any, holdout: Any, method: str) -> list[dict[str, Tensor]] | None:
    """Tokens, mask and labels: for SFT as its trainer makes them, for GRPO those of question and right answer."""
    if holdout is None:
        return None
    if method == "sft":
        rows = [{name: row[name] for name in ("input_ids", "labels")} for row in trainer.eval_dataset]
        batch = trainer.data_collator(rows)
    else:
        tokenizer = trainer.processing_class
        batch = collated([_tokens(tokenizer, row) for row in holdout], tokenizer.pad_token_id or 0)
    device = trainer.model.device
    return [{name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor)}]


def _tokens(tokenizer: Any, row: dict[str, Any]) -> Row:
    """Ids and labels; without a right answer the question is its own target."""
    question, answer = row["prompt"], row.get("completion")
    if not isinstance(question, str):
        before = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
        full = before if answer is None else tokenizer.apply_chat_template(question + answer, tokenize=False)
        prefix, ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (before, full))
    else:
        prefix, ids = (tokenizer(text)["input_ids"] for text in (question, question + (answer or "")))
        if answer is not None and tokenizer.eos_token_id is not None:
            ids = [*ids, tokenizer.eos_token_id]
    masked = len(prefix) if answer is not None else 0
    return ids, [-100] * min(masked, len(ids)) + ids[masked:]
