"""A tiny GPT-2 and a tiny Llama, whose sizes every format takes, and batches to judge them on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantised_units import find_units

VOCABULARY = 96
TOKENS = torch.arange(3 * 14).reshape(3, 14) * 7 % VOCABULARY
BATCHES = [{"input_ids": rows, "labels": rows} for rows in (TOKENS[:2], TOKENS[2:])]
_SPECIAL = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 32}
    return _with_weights(lambda: GPT2LMHeadModel(GPT2Config(**{**_SPECIAL, **sizes, **options})))


def llama(family: str = "llama", **options: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 32, "tie_word_embeddings": False,
    }  # fmt: skip
    config = AutoConfig.for_model(family, **{**_SPECIAL, **sizes, **options})
    return _with_weights(lambda: AutoModelForCausalLM.from_config(config))


def _with_weights(build: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = build().eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.15)
            else:  # norms and biases that a wrong order would show
                parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def blocks_at(model: nn.Module, attn: int, mlp: int) -> dict[str, int]:
    return {unit.name: attn if unit.part == "attn" else mlp for unit in find_units(model)}


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    found: Tensor = model(input_ids=TOKENS).logits
    return found.clone()


@torch.no_grad()
def mean_kl(model: nn.Module, variant: nn.Module) -> float:
    """KL per predicted position in float64, by its definition: the reference for what is reported."""
    p, q = (logits(m)[:, :-1].double().log_softmax(-1) for m in (model, variant))
    return float((p.exp() * (p - q)).sum(-1).mean())
