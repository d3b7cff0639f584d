"""Models to attack, and attacks written as plain loops, with nothing of learnscope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def digits_classifier() -> tuple[nn.Module, Tensor, Tensor]:
    """A small network in float64, trained on scikit-learn's digits, and examples that it has not seen."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images) / 16, torch.tensor(labels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(x[:1500]), y[:1500]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model.eval(), x[1500:1540], y[1500:1540]


def plain_pgd(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, epsilon: float, step: float, steps: int,
    clip: tuple[float, float] | None = None,
) -> Tensor:  # fmt: skip
    """L∞ PGD on the attacked input itself, one example at a time, keeping its worst point."""
    found = []
    low, high = clip or (-torch.inf, torch.inf)
    for one, label, begin in zip(x, y, start, strict=True):
        attacked, worst, kept = (one + begin).clamp(low, high), -torch.inf, one
        for _ in range(steps):
            attacked = attacked.detach().requires_grad_()
            F.cross_entropy(model(attacked[None]), label[None]).backward(inputs=[attacked])
            assert attacked.grad is not None
            moved = attacked.detach() + step * attacked.grad.sign()
            attacked = torch.minimum(torch.maximum(moved, one - epsilon), one + epsilon).clamp(low, high)
            loss = float(F.cross_entropy(model(attacked[None]), label[None]).detach())
            if loss > worst:
                worst, kept = loss, attacked
        found.append(kept)
    return torch.stack(found)


def sizes() -> dict[str, Any]:
    return {"vocab_size": 50, "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}


def language_models() -> dict[str, Callable[[], nn.Module]]:
    """Tiny ones of four families, in float64."""
    import transformers as hf

    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}

    def llama(config: Any, model: Any) -> nn.Module:
        made: nn.Module = model(
            config(**sizes(), **ids, num_key_value_heads=2, intermediate_size=24, max_position_embeddings=32)
        )
        return made.double()

    def gpt2() -> nn.Module:
        config = hf.GPT2Config(vocab_size=50, n_layer=2, n_embd=16, n_head=2, n_positions=32, **ids)
        return hf.GPT2LMHeadModel(config).double()

    def bert() -> nn.Module:
        config = hf.BertConfig(**sizes(), intermediate_size=24, max_position_embeddings=32, num_labels=3)
        return hf.BertForSequenceClassification(config).double()

    return {
        "gpt2": gpt2,
        "llama": lambda: llama(hf.LlamaConfig, hf.LlamaForCausalLM),
        "qwen2": lambda: llama(hf.Qwen2Config, hf.Qwen2ForCausalLM),
        "bert": bert,
    }


def token_batch(family: str, *, padding: int = 0) -> dict[str, Tensor]:
    """Three sequences of unequal length, padded on the right, and by `padding` more columns than they need."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 50, (3, 9), generator=generator)
    mask = torch.ones_like(tokens)
    mask[1, 6:] = 0
    mask[2, 4:] = 0
    tokens, mask = F.pad(tokens * mask, (0, padding)), F.pad(mask, (0, padding))
    batch = {"input_ids": tokens, "attention_mask": mask}
    return batch | ({"labels": torch.tensor([0, 2, 1])} if family == "bert" else {})
