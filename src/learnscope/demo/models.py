"""The demo's models: small, and all but two with a deliberate fault."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    """Nothing wrong: two convolutions with batch norm, dropout before the head."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_block(1, channels), _block(channels, 2 * channels)])
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(2 * channels * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.dropout(x.flatten(1)))
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)  # batch norm has the bias
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


class _Layers(nn.Module):
    """Linear layers of these widths on flattened images, and a head."""

    def __init__(self, *widths: int, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias) for inputs, outputs in pairwise(widths))
        self.head = nn.Linear(widths[-1], 10)

    def activation(self, x: Tensor) -> Tensor:
        return x.relu()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = self.activation(layer(x))
        logits: Tensor = self.head(x)
        return logits


class WideNet(_Layers):
    """Far more weights than examples and no regularisation: free to memorise."""

    def __init__(self, width: int = 256) -> None:
        super().__init__(64, width, width)


class DeepSigmoidNet(_Layers):
    """Sigmoids (slope at most 1/4) over small weights: each layer passes back a fraction of the gradient."""

    def __init__(self, depth: int = 8, width: int = 32, scale: float = 0.1) -> None:
        super().__init__(64, *[width] * depth)
        for name, parameter in self.layers.named_parameters():
            if name.endswith("weight"):
                nn.init.normal_(parameter, std=scale)

    def activation(self, x: Tensor) -> Tensor:
        return x.sigmoid()


class UnsafeNorm(nn.Module):
    """RMS normalisation whose guard against division by zero is in the wrong place, after the root.

    The forward works: 0 / 1e-6 is 0. The backward does not: the root's slope at 0 is infinite, and the zero
    that `clamp` passes back times infinity is NaN. The guard belongs under the root: (mean + eps).sqrt().
    """

    def forward(self, x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-6)


class UnsafeNet(_Layers):
    """Two layers with the unsafe norm, without biases: an empty image stays exactly zero up to the head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__(64, width, width, bias=False)
        self.norm = UnsafeNorm()

    def activation(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed.relu()


class ModularAdder(nn.Module):
    """Two numbers below `p` in, logits of their sum modulo `p` out.

    One hidden layer with squares as its activation (arXiv 2301.02679): a square turns the sum of two waves
    into their product, and products of waves are what addition on a circle is made of.
    """

    def __init__(self, p: int, width: int = 48, hidden: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(p, width)
        self.hidden = nn.Linear(2 * width, hidden)
        self.head = nn.Linear(hidden, p, bias=False)
        nn.init.normal_(self.embed.weight, std=width**-0.5)

    def forward(self, pairs: Tensor) -> Tensor:
        hidden: Tensor = self.hidden(self.embed(pairs).flatten(1))
        logits: Tensor = self.head(torch.square(hidden))
        return logits
