"""Models of the second blind set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.unseen.second_material import MADE


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, channels: int = 1, classes: int = 4, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stage1, self.stage2 = Residual(width), Residual(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stage2(F.max_pool2d(self.stage1(self.stem(x)), 2))
        return self.head(h.amax((2, 3)))


class UNet(nn.Module):
    """For pictures of 12 × 12: logits of each pixel."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        h = self.up(self.middle(self.down2(F.max_pool2d(first, 2))))
        return self.out(torch.cat([first, h], 1))


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width: int = 32, blocks: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 3, stride=3)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


class TCN(nn.Module):
    """Dilated convolutions that see the past alone: (batch, time, 1) to the same."""

    def __init__(self, width: int = 16, outputs: int = 1) -> None:
        super().__init__()
        sizes = (1, width, width, width)
        self.layers = nn.ModuleList(nn.Conv1d(sizes[n], width, 3, dilation=2**n) for n in range(3))
        self.head = nn.Conv1d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(1, 2)
        for number, layer in enumerate(self.layers):
            h = F.relu(layer(F.pad(h, (2 * 2**number, 0))))
        return self.head(h).transpose(1, 2)


class Seq2Seq(nn.Module):
    """An encoder and a decoder of GRUs; the decoder is given what came before."""

    def __init__(self, tokens: int = 9, width: int = 40) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(2 * width, width, batch_first=True)
        self.head = nn.Linear(2 * width, tokens)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        states, last = self.encoder(self.embedding(source))
        context = states.mean(1, keepdim=True).expand(-1, before.shape[1], -1)
        h, _ = self.decoder(torch.cat([self.embedding(before), context], 2), last)
        weights = (h @ states.transpose(1, 2)).softmax(2)
        return self.head(torch.cat([h, weights @ states], 2))

    @torch.no_grad()
    def generate(self, source: Tensor, length: int) -> Tensor:
        said = source.new_zeros(len(source), 1)
        for _ in range(length):
            said = torch.cat([said, self(source, said)[:, -1:].argmax(-1)], 1)
        return said[:, 1:]


class Encoder(nn.Module):
    """A transformer over tokens; classes, or tags of every place."""

    def __init__(
        self, tokens: int = 9, classes: int = 2, *, width: int = 32, length: int = 32, dropout: float = 0.0,
        tags: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding, self.places = nn.Embedding(tokens, width), nn.Parameter(0.5 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.tags = nn.Linear(width, classes), tags

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.body(self.embedding(tokens) + self.places[: tokens.shape[1]], mask=mask)
        return self.head(h if self.tags else h.mean(1))


class Table(nn.Module):
    """Embeddings of the categories beside the numbers, of what `columns` gives."""

    def __init__(self, classes: int = 3, width: int = 48) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in (12, 7, 5))
        self.body = nn.Sequential(nn.Linear(23, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        looked = [table(x[:, n].long()) for n, table in enumerate(self.tables)]
        return self.head(self.body(torch.cat([*looked, x[:, 3:]], 1)))


class GIN(nn.Module):
    """Sums over neighbours, twice, and a sum over nodes; nodes begin with their degree."""

    def __init__(self, classes: int = 2, width: int = 24, *, always_dropped: float = 0.0) -> None:
        super().__init__()
        self.always = always_dropped
        self.first = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, adjacency: Tensor) -> Tensor:
        degree = adjacency.sum(2, keepdim=True) / 4
        triangles = torch.diagonal(adjacency @ adjacency @ adjacency, dim1=1, dim2=2)[..., None] / 12
        h = torch.cat([degree, triangles], 2)
        h = self.first(h + adjacency @ h / 4)
        h = self.second(h + adjacency @ h / 4)
        pooled = h.mean(1)
        return self.head(F.dropout(pooled, self.always) if self.always else pooled)


class Experts(nn.Module):
    """The best expert of four for each row; its share of the router's softmax multiplies what it says."""

    def __init__(self, inputs: int = 8, outputs: int = 1, *, routed: bool = True) -> None:
        super().__init__()
        self.routed = routed
        self.router = nn.Linear(inputs, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, outputs)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(1)
        said = torch.stack([expert(x) for expert in self.experts], 1)
        if self.routed:
            return (gates[..., None] * said).sum(1)
        return said[torch.arange(len(x)), gates.argmax(1)]


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=MADE, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=0, pad_token_id=None,
            **options,
        )
    )  # fmt: skip


def masked_bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=MADE, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
        )
    )  # fmt: skip
