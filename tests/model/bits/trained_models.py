"""Small language models that were trained on the built-in text, byte by byte, and what quantising does to them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.calibration import Calibration
from learnscope.model.bits.copies import QuantisedCopies
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.sources import builtin_rows
from learnscope.tensor.bits.quantize import Scheme

LENGTH = 40


@cache
def tokens(split: str) -> Tensor:
    """Sequences of bytes [sequences, LENGTH]; no topic is in two splits."""
    text = "\n".join(row["text"] for row in builtin_rows(split))
    found = torch.tensor(list(text.encode()))
    return found[: len(found) // LENGTH * LENGTH].reshape(-1, LENGTH)


def untrained(family: str, width: int, layers: int) -> nn.Module:
    import transformers

    ends: dict[str, Any] = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    if family == "gpt2":
        no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                **ends, **no_dropout, initializer_range=0.1, n_embd=width, n_layer=layers, n_head=4, n_positions=LENGTH
            )
        )
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **ends, pad_token_id=0, hidden_size=width, intermediate_size=2 * width + 32, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip


@cache
def trained(family: str, width: int = 48, layers: int = 2, steps: int = 150, seed: int = 0) -> nn.Module:
    """In eval mode; do not change it."""
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        model = untrained(family, width, layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
        text = tokens("train")
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
            batch = text[torch.randint(len(text), (16,))]
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval()


@cache
def calibration(model: nn.Module) -> Calibration:
    """On text that the model was trained on."""
    return Calibration.collect(model, [{"input_ids": part} for part in tokens("train")[:128].split(32)])


@torch.no_grad()
def held_out_kl(model: nn.Module, method: str, bits: int, scheme: Scheme, sequences: int = 128) -> Tensor:
    """KL(original ‖ quantised) of every sequence, on text that was neither trained nor calibrated on; all blocks."""
    units, text = find_units(model), tokens("validation")[:sequences]
    copies = QuantisedCopies(model, scheme, method, calibration(model))
    original = model(input_ids=text).logits.double().log_softmax(-1)
    with quantised(model, dict.fromkeys((unit.name for unit in units), bits), scheme, units=units, copies=copies):
        changed = model(input_ids=text).logits.double().log_softmax(-1)
    return (original.exp() * (original - changed)).sum(-1).mean(-1)
