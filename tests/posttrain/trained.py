"""A GPT-2 that was trained here on the built-in text, made once on a machine and shared by tests and their workers."""

from __future__ import annotations

import getpass
import hashlib
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from learnscope.posttrain.builtin import Recipe, make_builtin
from learnscope.sources.builtin_text import builtin_rows, text_hash

SMALL = Recipe(vocabulary=512, layers=2, width=64, heads=2, positions=128, length=64, steps=150)


def trained_llama() -> Path:
    """A Hugging Face folder with the same tokenizer: two layers of 64, with an embedding and a head of their own."""
    source = trained_gpt2()
    home = source.parent / f"{source.name}-llama"
    with FileLock(f"{home}.lock"):
        if not (home / "config.json").is_file():
            _train_llama(source, home)
    return home


def _train_llama(source: Path, folder: Path) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    make: Any = AutoTokenizer  # has no types
    tokenizer = make.from_pretrained(source)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=SMALL.positions, tie_word_embeddings=False,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    texts = [tokenizer(row["text"])["input_ids"] for row in builtin_rows("train")]
    stream = torch.tensor([token for ids in texts for token in ids])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(120):
            starts = torch.randint(len(stream) - SMALL.length, (8,)).tolist()
            ids = torch.stack([stream[start : start + SMALL.length] for start in starts])
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    partial = folder.with_name(f".{folder.name}.partial")
    model.eval().save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def trained_gpt2() -> Path:
    """A Hugging Face folder with its tokenizer: two layers of 64, far better than the frequencies of its tokens."""
    made_of = json.dumps({**asdict(SMALL), "text": text_hash(), "torch": torch.__version__}, sort_keys=True)
    home = Path(tempfile.gettempdir()) / f"learnscope-tests-{getpass.getuser()}"
    home.mkdir(mode=0o700, exist_ok=True)
    folder = home / hashlib.sha256(made_of.encode()).hexdigest()[:16]
    with FileLock(f"{folder}.lock"):
        return make_builtin(folder, recipe=SMALL)
