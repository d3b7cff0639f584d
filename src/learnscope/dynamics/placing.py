"""Where a model is, against where its analyzer was told it would be."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from learnscope.model.outputs.evaluate import model_device


def check_device(model: nn.Module, device: Any) -> None:
    """Refuse a device that is not the model's: inputs go where the model is, and nothing else is moved."""
    if device is None:
        return
    wanted, found = torch.device(device), model_device(model)
    same = wanted.type == found.type and (wanted.index is None or wanted.index == (found.index or 0))
    if not same:
        raise ValueError(f"device={str(wanted)!r}, but the model is on {found}: move the model, or leave device out")
