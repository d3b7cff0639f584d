"""Codes that were chosen already, as GGUF's blocks of 32; `gguf.dequantize` reads them.

gguf's own quantiser takes numbers and chooses codes itself, which would undo what a calibrated method chose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.model.bits.torchao_export import ExportError
from learnscope.tensor.bits.quantize import Quantised

BLOCK = 32
"""Input features that share a scale."""


def blocks(name: str, quantised: Quantised) -> NDArray[np.uint8]:
    """The rows of a weight as bytes: scale, offset if asymmetric, the fifth bits, and the lower four or all eight."""
    assert quantised.scale is not None
    outputs, inputs = quantised.codes.shape
    codes = quantised.codes.cpu().numpy().astype(np.int16).reshape(outputs, inputs // BLOCK, BLOCK)
    scale = quantised.scale.float().cpu().numpy()
    parts: list[NDArray[Any]] = [_half(name, scale)]
    if quantised.zero is not None:
        parts.append(_half(name, -quantised.zero.cpu().numpy().astype(np.float32) * scale))
    elif quantised.bits < 8:
        codes = codes + 2 ** (quantised.bits - 1)
    if quantised.bits == 8:
        parts.append(codes.astype(np.int8).view(np.uint8))
    else:
        unsigned = codes.astype(np.uint8)
        if quantised.bits == 5:
            parts.append(np.packbits(unsigned >> 4, axis=-1, bitorder="little"))
        low = unsigned & 15
        parts.append(low[..., : BLOCK // 2] | low[..., BLOCK // 2 :] << 4)
    return np.concatenate(parts, axis=-1).reshape(outputs, -1)


def _half(name: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    with np.errstate(over="ignore"):
        half = values.astype("<f2")
    if not np.isfinite(half).all():
        raise ExportError(f"{name}: a scale is more than float16 can hold, in which GGUF stores them")
    return half[..., None].view(np.uint8)
