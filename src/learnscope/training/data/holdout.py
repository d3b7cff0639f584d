"""The examples kept aside, as one batch that the model takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from learnscope.training.data.batches import Row, collated


def holdout_batches(trainer: Any, holdout: Any, method: str) -> list[dict[str, Tensor]] | None:
    """Tokens, mask and labels, with which SFT's trainer would train on them; for GRPO question and right answer."""
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
    asked, told = row["prompt"], row.get("completion")
    if not isinstance(asked, str):
        before = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        whole = before if told is None else tokenizer.apply_chat_template(asked + told, tokenize=False)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (before, whole)]
    else:
        ids = [tokenizer(asked)["input_ids"], tokenizer(asked + (told or ""))["input_ids"]]
        if told is not None and tokenizer.eos_token_id is not None:
            ids[1] = [*ids[1], tokenizer.eos_token_id]
    known = len(ids[0]) if told is not None else 0
    return ids[1], [-100] * min(known, len(ids[1])) + ids[1][known:]
