"""A digest to check that examples are the same as before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from learnscope.model.examples.fingerprint import input_sample
from learnscope.task import Task


@torch.no_grad()
def sample_digest(task: Task, batches: Iterable[Any]) -> str:
    """Sixteen digits for these examples in this order: from some entries of each input, and from its label.

    The digest does not depend on how the examples are batched.
    """
    inputs, labels = hashlib.sha256(), hashlib.sha256()
    for batch in batches:
        for digest, values in ((inputs, input_sample(batch)), (labels, task.targets(batch))):
            # targets of sequences depend on the padding of their batch, and their inputs identify them already
            if values is not None and (digest is inputs or values.ndim == 1):
                digest.update(_bytes(values))
    return hashlib.sha256(inputs.digest() + labels.digest()).hexdigest()[:16]


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
