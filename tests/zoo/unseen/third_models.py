"""Models of the third blind set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Reader(nn.Module):
    """A GRU over tokens; a class from the last state."""

    def __init__(self, tokens: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(tokens, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[1][0])


class Listener(nn.Module):
    """Convolutions over a recording, with batch norm."""

    def __init__(self, classes: int = 4, width: int = 16, momentum: float = 0.1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(1, width, 7, padding=3), nn.BatchNorm1d(width, momentum=momentum)
        self.conv2, self.norm2 = nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width, momentum=momentum)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool1d(F.relu(self.norm1(self.conv1(x))), 2)
        return self.head(F.relu(self.norm2(self.conv2(h))).mean(2))


class Segmenter(nn.Module):
    """Logits of each pixel from dilated convolutions."""

    def __init__(self, width: int = 12, outputs: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=2, dilation=2), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.out = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


class Judge(nn.Module):
    """A transformer encoder over tokens; a class from the mean."""

    def __init__(
        self, tokens: int, classes: int, *, width: int = 32, length: int = 24, layers: int = 2, batch_first: bool = True
    ) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(tokens, width), nn.Parameter(0.3 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=batch_first, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens) + self.places[: tokens.shape[1]]).mean(1))


class GraphNet(nn.Module):
    """Two convolutions over a graph, whose normalised adjacency is given."""

    def __init__(self, inputs: int = 3, classes: int = 3, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ self.second(F.relu(adjacency @ self.first(x)))


def small_gpt2(tokens: int = 16, length: int = 24, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=tokens, n_positions=length, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **options,
        )
    )  # fmt: skip
