"""All that a call could leave behind on a model, or in the state of the random numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn


def watched(model: nn.Module) -> list[Any]:
    modules = list(model.modules())
    hooks = [
        len(hooks)
        for m in modules
        for hooks in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    ]
    grads = [None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()]
    numbers = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    return [
        [m.training for m in modules], hooks, grads, [(id(b), b.tolist()) for b in model.buffers()], numbers,
        [(id(p), p._version, p.requires_grad, p.tolist()) for p in model.parameters()], torch.is_grad_enabled(),
    ]  # fmt: skip
