"""The built-in model: a small GPT-2 and its tokenizer, trained on the built-in text, to have something to examine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from learnscope.model.cost.timing import fixed_threads
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.builtin_text import builtin_rows, text_hash
from learnscope.sources.hushed import hushed, no_bars
from learnscope.store.files import write_json

END = "<|endoftext|>"
MARK = "learnscope_builtin.json"
"""How the model of this folder was made."""
STEPS = 200
"""Of training: about a minute on one core."""
Show = Callable[[int, int], None]


@dataclass(frozen=True)
class Recipe:
    """What the model depends on, besides the text."""

    version: int = 2
    vocabulary: int = 1024
    layers: int = 4
    width: int = 128
    heads: int = 4
    positions: int = 256
    length: int = 128
    batch: int = 16
    rate: float = 3e-3
    steps: int = STEPS


def make_builtin(folder: str | Path, *, show: Show | None = None, recipe: Recipe | None = None) -> Path:
    """The folder with the model, as transformers saves it; made unless it is there already.

    `show(step, steps)` is called after every step. The folder is written as a whole or not at all, and one that was not
    made here is refused.
    """
    recipe = recipe or Recipe()
    path = Path(folder)
    mark = {**asdict(recipe), "text": text_hash()}
    if path.exists() and not (path / MARK).is_file():
        if not path.is_dir() or any(path.iterdir()):
            raise PosttrainError(f"{path} is there and was not made here: name another folder for the built-in model")
        path.rmdir()
    if path.exists() and _mark(path) == mark:
        return path
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer = bpe_tokenizer([row["text"] for row in builtin_rows("train")], recipe.vocabulary)
    with hushed(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small_gpt2(tokenizer, recipe)
        with fixed_threads(1):  # for a model this small, more threads mostly wait for each other
            _train(model, tokenizer, recipe, show or (lambda _step, _steps: None))
        with no_bars():
            model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    write_json(partial / MARK, mark)
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)
    return path


def bpe_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Byte-level BPE, as GPT-2's, which can encode any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pairs.train_from_iterator(texts, trainer)
    make: Any = PreTrainedTokenizerFast  # has no types
    return make(tokenizer_object=pairs, bos_token=END, eos_token=END, pad_token=END)


def small_gpt2(tokenizer: Any, recipe: Recipe) -> Any:
    """Without dropout, since it is trained so briefly."""
    from transformers import GPT2Config, GPT2LMHeadModel

    make: Any = GPT2LMHeadModel  # has no types
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=recipe.positions, n_embd=recipe.width, n_layer=recipe.layers,
        n_head=recipe.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=True,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return make(config)


def _train(model: Any, tokenizer: Any, recipe: Recipe, show: Show) -> None:
    texts = [tokenizer(row["text"])["input_ids"] for row in builtin_rows("train")]
    stream = torch.tensor([token for ids in texts for token in (*ids, tokenizer.eos_token_id)])
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=recipe.steps, pct_start=0.1)
    for step in range(recipe.steps):
        starts = torch.randint(len(stream) - recipe.length, (recipe.batch,)).tolist()
        ids = torch.stack([stream[start : start + recipe.length] for start in starts])
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        show(step + 1, recipe.steps)
    model.eval()


def _mark(folder: Path) -> Any:
    try:
        return json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
