"""Models of the fifth blind set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two residual blocks over pictures of 8 × 8, with batch norm or group norm."""

    def __init__(self, classes: int = 10, width: int = 12, *, groups: int = 0, momentum: float = 0.1) -> None:
        super().__init__()

        def norm() -> nn.Module:
            return nn.GroupNorm(groups, width) if groups else nn.BatchNorm2d(width, momentum=momentum)

        self.stem, self.first = nn.Conv2d(1, width, 3, padding=1), norm()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), norm(), nn.ReLU(),
                          nn.Conv2d(width, width, 3, padding=1), norm()) for _ in range(2)
        )  # fmt: skip
        self.head = nn.Linear(4 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(self.stem(x)))
        for block in self.blocks:
            x = F.relu(x + block(x))
        return F.adaptive_avg_pool2d(x, 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class UNet(nn.Module):
    """One level down and up again, with a skip; a logit of each pixel."""

    def __init__(self, width: int = 10, outputs: int = 1) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.low = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU())  # fmt: skip
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.up(self.low(F.max_pool2d(high, 2)))
        return self.out(self.last(torch.cat([high, low], 1)))


def covered(model: nn.Module, pictures: Tensor, masks: Tensor) -> float:
    """Dice of the masks at a half."""
    with torch.no_grad():
        found = (model.eval()(pictures) > 0).float()
    return float(2 * (found * masks).sum() / (found.sum() + masks.sum()).clamp(min=1))


class WordConv(nn.Module):
    """Convolutions over words, the greatest of each."""

    def __init__(self, words: int = 60, kinds: int = 4, width: int = 24, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 16, size, padding=size // 2) for size in (1, 3, 5))
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(48, kinds)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text).transpose(1, 2)
        return self.head(self.dropout(torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1)))


class Columns(nn.Module):
    """Each column is a token, and one more answers."""

    def __init__(self, columns: int, outputs: int, width: int = 24) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.5 * torch.randn(columns, width))
        self.shift = nn.Parameter(0.5 * torch.randn(columns, width))
        self.asks = nn.Parameter(0.5 * torch.randn(1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 48, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.asks.expand(len(x), 1, -1), x[:, :, None] * self.scale + self.shift], 1)
        return self.head(self.body(tokens)[:, 0])


class Dilated(nn.Module):
    """Convolutions over the past that reach twice as far in every layer."""

    def __init__(self, ahead: int = 4, width: int = 16) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(1 if far == 1 else width, width, 3, dilation=far) for far in (1, 2, 4)
        )  # fmt: skip
        self.head = nn.Linear(width, ahead)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.relu(conv(F.pad(x, (2 * conv.dilation[0], 0))))
        return self.head(x[:, :, -1])


class ConvVAE(nn.Module):
    """Digits of 8 × 8: the picture, mean and log variance of its code."""

    def __init__(self, code: int = 6) -> None:
        super().__init__()
        self.code = code
        self.encoder = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
                                     nn.Flatten(), nn.Linear(96, 2 * code))  # fmt: skip
        self.decoder = nn.Sequential(nn.Linear(code, 96), nn.ReLU(), nn.Unflatten(1, (24, 2, 2)),
                                     nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(),
                                     nn.ConvTranspose2d(12, 1, 4, 2, 1))  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).split(self.code, 1)
        code = mean + torch.randn_like(mean) * (spread / 2).exp() if self.training else mean
        return self.decoder(code), mean, spread


class Words(nn.Module):
    """A transformer over words with places and a mask of the padding, which is 0."""

    def __init__(self, words: int = 60, kinds: int = 4, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(words, width), nn.Parameter(0.2 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, text: Tensor) -> Tensor:
        empty = text == 0
        h = self.body(self.embedding(text) + self.places[: text.shape[1]], src_key_padding_mask=empty)
        return self.head((h * ~empty[:, :, None]).sum(1) / (~empty).sum(1, keepdim=True))


def little_gpt2(words: int = 18, length: int = 24, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=words, n_positions=length, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=1, **options,
        )
    )  # fmt: skip


def little_bert(words: int = 60, labels: int = 4, **options: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=words, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=32, num_labels=labels, pad_token_id=0, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, **options,
        )
    )  # fmt: skip
