"""Sequences that a model makes up: their distribution against exact probabilities, and what stays as it was."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from scipy.stats import chisquare

from learnscope.model.outputs.sampling import CannotSample, own_samples

VOCABULARY = 4


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    return tf.GPT2LMHeadModel(tf.GPT2Config(**{**sizes, **ends, **options, "initializer_range": 0.8}))


def without_a_cache() -> Any:
    torch.manual_seed(0)
    config = tf.OpenAIGPTConfig(vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model: Any = tf.OpenAIGPTLMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    return model


def exact(model: Any, first: int, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every sequence that begins with `first`, each by a pass of its own over the whole of it."""
    model = model.eval()
    found = {}
    for rest in itertools.product(range(VOCABULARY), repeat=length - 1):
        ids = torch.tensor([[first, *rest]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].double().numpy()
        each = np.exp(logits - logits.max(-1, keepdims=True))
        each /= each.sum(-1, keepdims=True)
        found[first, *rest] = float(np.prod(each[np.arange(length - 1), rest]))
    return found


@pytest.mark.parametrize("make", [gpt2, without_a_cache])
def test_sequences_come_as_often_as_the_model_says(make: Any) -> None:
    model, count = make(), 3000
    drawn = own_samples(model, vocabulary=VOCABULARY, count=count, length=3, seed=5)
    assert drawn.shape == (count, 3)
    firsts = drawn[:, 0].unique().tolist()
    assert firsts == ([1] if model.config.bos_token_id == 1 else list(range(VOCABULARY)))
    expected = {}
    for first in firsts:
        share = float((drawn[:, 0] == first).double().mean())
        expected |= {ids: share * p for ids, p in exact(model, first, 3).items()}
    seen = [int((drawn == torch.tensor(ids)).all(1).sum()) for ids in expected]
    assert max(expected.values()) > 3 * min(expected.values()), "the model prefers some to others"
    assert chisquare(seen, [count * p for p in expected.values()]).pvalue > 0.001


def test_a_seed_gives_the_same_and_nothing_else_moves() -> None:
    model = gpt2().train()
    model.transformer.h[0].eval()
    sizes: dict[str, Any] = {"vocabulary": VOCABULARY, "count": 70, "length": 6}
    flags = [module.training for module in model.modules()]
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first = own_samples(model, seed=0, **sizes)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # type: ignore[index]
    assert [module.training for module in model.modules()] == flags
    torch.manual_seed(99)
    assert torch.equal(own_samples(model, seed=0, **sizes), first), "without dropout, and not from torch's generator"
    assert not torch.equal(own_samples(model, seed=1, **sizes), first)


def test_what_cannot_make_up_a_sequence_is_refused() -> None:
    sizes: dict[str, Any] = {"vocabulary": VOCABULARY, "count": 2, "length": 3, "seed": 0}
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(CannotSample, match="BertForMaskedLM does not predict the next token"):
        own_samples(tf.BertForMaskedLM(tf.BertConfig(vocab_size=VOCABULARY, **small)), **sizes)
    with pytest.raises(CannotSample, match="cannot tell whether Linear is a causal"):
        own_samples(torch.nn.Linear(2, 2), **sizes)
    broken = gpt2()
    broken.transformer.ln_f.weight.data[0] = torch.nan
    with pytest.raises(CannotSample, match="not finite"):
        own_samples(broken, **sizes)
