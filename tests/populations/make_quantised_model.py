"""Makes quantised_model.npz: how far a small trained language model is from itself in 4 bits, token by token.

A GPT-2 of two layers is trained on the characters of the built-in text, its blocks are rounded to 4
bits, and both are run on passages that it was not trained on. Kept are the KL of single tokens, one of each passage,
and of whole passages of unequal length the sums of KL and of the change of the loss, with the number of tokens.

    python tests/populations/make_quantised_model.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.sources import builtin_rows

LENGTH, PASSAGES, STEPS = 48, 3000, 400


def encoded(split: str) -> Tensor:
    text = "\n".join(row["text"] for row in builtin_rows(split))
    return torch.tensor([min(max(ord(letter), 31), 127) - 31 for letter in text])


def trained(text: Tensor) -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=97, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        at = torch.randint(len(text) - LENGTH, (16,))
        batch = torch.stack([text[i : i + LENGTH] for i in at.tolist()])
        optimizer.zero_grad()
        loss: Tensor = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    model, text = trained(encoded("train")), encoded("validation")
    random = np.random.default_rng(0)
    at = random.integers(0, len(text) - LENGTH, PASSAGES)
    tokens = torch.stack([text[i : i + LENGTH] for i in at.tolist()])
    lengths = torch.from_numpy(random.integers(4, LENGTH, PASSAGES))
    units = find_units(model)

    def log_probabilities() -> Tensor:
        return F.log_softmax(torch.cat([model(input_ids=part).logits for part in tokens.split(250)]).double(), -1)[
            :, :-1
        ]

    with torch.no_grad():
        own = log_probabilities()
        with quantised(model, {unit.name: 4 for unit in units}, units=units):
            other = log_probabilities()
    kl = (own.exp() * (own - other)).sum(-1)
    change = (own - other).gather(-1, tokens[:, 1:, None])[..., 0]
    inside = torch.arange(LENGTH - 1) < lengths[:, None]
    one = torch.from_numpy(random.integers(0, LENGTH - 1, PASSAGES))
    np.savez_compressed(
        Path(__file__).with_name("quantised_model.npz"),
        token_kl=kl[torch.arange(PASSAGES), one].float().numpy(),
        passage_kl=(kl * inside).sum(1).float().numpy(),
        passage_change=(change * inside).sum(1).float().numpy(),
        passage_tokens=inside.sum(1).short().numpy(),
    )


if __name__ == "__main__":
    main()
