"""Small models whose bits are measured, and their quantisation written down once more: NumPy in float64."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probes.reference import tiny_gpt2

Array = np.ndarray[Any, Any]


def texts(lengths: list[int], length: int, seed: int = 0) -> dict[str, Tensor]:
    """Ragged texts, padded on the right."""
    mask = torch.arange(length)[None] < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, 40, (len(lengths), length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids.where(mask, 0), "attention_mask": mask.long()}


def trained_gpt2(layers: int = 3, steps: int = 12) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """A hardly trained GPT-2, so that its layers differ, and ragged batches."""
    torch.manual_seed(0)
    model = tiny_gpt2(n_layer=layers, n_head=2, n_embd=16)
    batches = [texts([9, 4, 7], 9, seed=1), texts([6, 6], 6, seed=2), texts([8, 2, 5], 8, seed=3)]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(steps):
        batch = batches[step % 3]
        model(**batch, labels=batch["input_ids"].where(batch["attention_mask"] > 0, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.train(), batches


def rounded(weight: Array, bits: int) -> Array:
    """A weight [out, in] on its grid, channel by channel: symmetric from 4 bits on, with a zero point below."""
    out = np.empty_like(weight)
    for channel, row in enumerate(weight.astype(np.float64)):
        if bits > 3:
            most = 2 ** (bits - 1) - 1
            scale = float(np.float32(np.abs(row).max() / most))
            out[channel] = np.clip(np.rint(row / scale), -most, most) * scale
        else:
            most = 2**bits - 1
            low, high = min(row.min(), 0.0), max(row.max(), 0.0)
            scale = float(np.float32((high - low) / most))
            zero = np.clip(np.rint(-low / scale), 0, most)
            out[channel] = (np.clip(np.rint(row / scale) + zero, 0, most) - zero) * scale
    return out


def with_bits(model: nn.Module, bits: Mapping[str, int]) -> nn.Module:
    """A float64 copy whose modules of these names (`h.0.attn`) have rounded weights; GPT-2 stores (in, out)."""
    other = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        for name, width in bits.items():
            for path, parameter in other.named_parameters():
                if path.startswith(f"{name}.") and parameter.ndim == 2:
                    stored_as = path.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
                    matrix = parameter.T if stored_as else parameter
                    new = torch.from_numpy(rounded(matrix.numpy(), width))
                    parameter.copy_(new.T if stored_as else new)
    return other


def token_logits(model: nn.Module, batches: list[dict[str, Tensor]]) -> tuple[Array, Array, Array]:
    """Of every position that predicts a token that is there: logits, the token, and the number of its text."""
    logits, targets, example, seen = [], [], [], 0
    with torch.no_grad():
        for batch in batches:
            found = model(**batch).logits.double().numpy()
            for text, length in enumerate(batch["attention_mask"].sum(1).tolist()):
                for place in range(length - 1):
                    logits.append(found[text, place])
                    targets.append(int(batch["input_ids"][text, place + 1]))
                    example.append(seen + text)
            seen += len(batch["input_ids"])
    return np.array(logits), np.array(targets), np.array(example)


class Switchable(nn.Module):
    """Sets its own precision: 4 bits or 8 only, and remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(1)
        sizes = {"n_layer": 3, "n_head": 2, "n_embd": 16, "vocab_size": 40, "n_positions": 16}
        self.inner = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        self.config = self.inner.config
        self.told: dict[int, tuple[int | None, int | None]] = {}

    def set_precision(self, layer: int, attn_bits: int | None = None, mlp_bits: int | None = None) -> None:
        for part, bits in (("attn", attn_bits), ("mlp", mlp_bits)):
            if bits is None:
                continue
            if bits not in (4, 8):
                raise ValueError(f"{bits} bits are not supported")
            block = self.inner.transformer.h[layer]
            for parameter in (p for p in getattr(block, part).parameters() if p.ndim > 1):
                step = parameter.detach().abs().max() / (2 ** (bits - 1) - 1)
                parameter.data = (parameter.data / step).round() * step
        self.told[layer] = (attn_bits, mlp_bits)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)
