"""The built-in model: a tiny Llama, briefly trained with all its weights, so that an adapter has something to adapt."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from learnscope.store.files import write_json
from learnscope.training.data.batches import collated
from learnscope.training.data.countdown import generate, prompt, solve

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""One token a character: any English text can be trained on."""
STEPS, BATCH, RATE = 200, 32, 3e-3
"""Of the training of all weights, which takes some seconds."""
HARDER = 0.1
"""Share of its problems that have three numbers; the others have two. The adapter is trained on three only."""
RECIPE = {"version": 2, "steps": STEPS, "batch": BATCH, "rate": RATE, "harder": HARDER}
MARK = "learnscope_builtin.json"

Show = Callable[[int, int], None]


def make_base_model(folder: Path, show: Show = lambda _done, _of: None) -> None:
    """Make the model and its tokenizer, train it, and write both to `folder`, atomically."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer = character_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tiny_llama(tokenizer)
        _train(model, tokenizer, show)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    write_json(partial / MARK, RECIPE)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def is_base_model(folder: Path) -> bool:
    """Whether `make_base_model` made it, with this recipe or an earlier one."""
    return (folder / MARK).is_file()


def is_current(folder: Path) -> bool:
    return is_base_model(folder) and json.loads((folder / MARK).read_text(encoding="utf-8")) == RECIPE


def character_tokenizer() -> Any:
    """Pads on the left, as generation needs; every text begins with <bos>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast  # has no types

    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    characters.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return make(tokenizer_object=characters, padding_side="left", **names)


def tiny_llama(tokenizer: Any) -> Any:
    """Four blocks with all seven projections, 0.7 million weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    make: Any = LlamaForCausalLM  # has no types
    return make(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip


def _train(model: Any, tokenizer: Any, show: Show) -> None:
    # from seeds that no data set of the training command uses
    hard = generate(int(STEPS * BATCH * HARDER), seed=-1)
    problems = generate(STEPS * BATCH - len(hard), seed=-1, amount=2) + hard
    random.Random(0).shuffle(problems)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.1)
    for step in range(STEPS):
        encoded = []
        for problem in problems[step * BATCH :][:BATCH]:
            before = tokenizer(prompt(*problem))["input_ids"]
            after = [*tokenizer(solve(*problem) or "")["input_ids"][1:], tokenizer.eos_token_id]
            encoded.append((before + after, [-100] * len(before) + after))  # labels are on the answers only
        model(**collated(encoded, tokenizer.pad_token_id)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        show(step + 1, STEPS)
