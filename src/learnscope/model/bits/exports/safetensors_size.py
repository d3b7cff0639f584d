"""The size of a safetensors file, from what will be in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import torch

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
Shapes = Mapping[str, tuple[torch.dtype, Sequence[int]]]


def safetensors_bytes(tensors: Shapes, metadata: Mapping[str, str]) -> int:
    """Bytes of the file with these tensors, by dtype and shape, and this metadata: header and data.

    >>> safetensors_bytes({"a": (torch.float32, [2, 3])}, {})
    96
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    # as the library orders them: wider dtypes first, then by name
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-item[1][0].itemsize, item[0])):
        end = place + math.prod(shape) * dtype.itemsize
        kind = _NAMES.get(dtype, str(dtype).removeprefix("torch.").upper())
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [place, end]}
        place = end
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-length // 8) * 8 + place
