"""A tiny language model and a tokenizer made here, and questions for them."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import torch

TEXT = "the cat dog sat ran on mat rug red blue is a an fish bird sees likes and not very big small naïve été"
WORDS = TEXT.split()


@cache
def tokenizer() -> Any:
    """BPE over bytes, whose tokens begin with a space: what is encoded together differs from what is encoded apart."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    generator = random.Random(0)
    texts = [" ".join(generator.choices(WORDS, k=12)) + "." for _ in range(200)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=330, special_tokens=["<e>"], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<e>", bos_token="<e>", pad_token="<e>")


def model(positions: int = 48) -> Any:
    """With large weights, so that its log-likelihoods are far apart."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=len(tokenizer()), n_positions=positions, n_embd=32, n_layer=2, n_head=2, initializer_range=0.35,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def choices(count: int = 40, seed: int = 1) -> list[dict[str, Any]]:
    """Choices of unequal length, contexts that are empty, end in spaces, or are longer than the model takes."""
    generator = random.Random(seed)
    rows = []
    for number in range(count):
        words = generator.choices(WORDS, k=80 if number % 7 == 3 else generator.randint(1, 8))
        context = "" if number == 5 else " ".join(words) + ("  " if number % 5 == 2 else "")
        options = list({" ".join(generator.choices(WORDS, k=generator.randint(1, 4))): 0 for _ in range(4)})
        rows.append({"context": context, "choices": options, "answer": generator.randrange(len(options))})
    return rows


def prompts(count: int = 12, seed: int = 2) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    return [
        {"prompt": " ".join(generator.choices(WORDS, k=60 if n == 4 else generator.randint(2, 8))), "answer": ["?"]}
        for n in range(count)
    ]
