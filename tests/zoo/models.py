"""Small models of several architectures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.material import PAD, VOCABULARY


def mlp(
    *sizes: int, activation: Callable[[], nn.Module] = nn.ReLU, dropout: float = 0.0, norm: bool = False
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), activation()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def cnn(*, norm: bool = False, dropout: float = 0.0, classes: int = 10, momentum: float | None = 0.1) -> nn.Sequential:
    """For digits of 8 × 8 pixels."""
    first = [nn.BatchNorm2d(8, momentum=momentum)] if norm else []
    second = [nn.BatchNorm2d(16, momentum=momentum)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), *first, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), *second,
        nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(16 * 16, classes),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Logits of the next token."""

    def __init__(
        self, *, width: int = 32, layers: int = 2, length: int = 64, vocabulary: int = VOCABULARY, tied: bool = False,
        dropout: float = 0.0, causal: bool = True, padding: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width, padding_idx=padding), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2, dropout, causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.1)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LSTM(nn.Module):
    """Logits of the next token."""

    def __init__(self, width: int = 48, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.rnn = nn.LSTM(width, width, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(self.rnn(self.encoder(tokens))[0])


class RowReader(nn.Module):
    """A recurrent network that reads an image of 8 × 8 row by row."""

    def __init__(self, cell: Callable[..., nn.Module] = nn.LSTM, width: int = 48) -> None:
        super().__init__()
        self.rnn, self.head = cell(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.view(len(x), 8, 8))[0][:, -1])


class Bag(nn.Module):
    """Mean of embeddings, then classes."""

    def __init__(self, tokens: int, classes: int, width: int = 24) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(tokens, width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


def autoencoder(inputs: int = 64, code: int = 12) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, code), nn.Linear(code, 48), nn.ReLU(), nn.Linear(48, inputs)
    )


class VAE(nn.Module):
    def __init__(self, code: int = 8) -> None:
        super().__init__()
        self.code = code
        self.encoder, self.decoder = mlp(64, 64, 2 * code), mlp(code, 64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).split(self.code, 1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code), mean, log_variance


def hf_gpt2(*, length: int = 64, layers: int = 2, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=length, n_embd=32, n_layer=layers, n_head=2, **(settings | options)
        )
    )


def hf_bert(labels: int = 2, **options: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=64, num_labels=labels, pad_token_id=PAD, **options,
        )
    )  # fmt: skip


def hf_vit(**options: Any) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, num_labels=10, **options,
        )
    )  # fmt: skip


def parameters(*modules: nn.Module) -> Sequence[nn.Parameter]:
    return [p for module in modules for p in module.parameters()]
