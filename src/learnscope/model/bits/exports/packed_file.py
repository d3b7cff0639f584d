"""learnscope's own packed file, behind the interface of the other formats."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.model.bits.exports.planning import Plan, Prepared
from learnscope.model.bits.exports.safetensors_size import safetensors_bytes
from learnscope.model.bits.packed import FORMAT, described, load_packed, save_packed, shapes_of_parts
from learnscope.model.weights.checkpoint import CheckpointError


def prepare(plan: Plan, _tokenizer: Any) -> Prepared:
    bits = {name: weight.bits for name, weight in plan.weights.items()}
    tensors = {name: weight.tensor for name, weight in plan.weights.items()}
    shapes = shapes_of_parts(plan.stored, tensors, bits, plan.scheme)
    metadata = FORMAT.metadata(described(plan.stored, tensors, bits, plan.bits, plan.scheme), seal="0" * 32)

    def write(path: Path) -> None:
        save_packed(plan.model, plan.bits, plan.scheme, path, ready=plan.ready)

    def load(path: Path) -> nn.Module:
        copied = copy.deepcopy(plan.model)
        load_packed(path, copied)
        return copied

    by = "loaded by learnscope into a copy of the model, and run"
    return Prepared(safetensors_bytes(shapes, metadata), plan.values, write, load, by)


def is_ours(path: Path) -> bool:
    try:
        with FORMAT.open(path) as file:
            FORMAT.header(file)
    except CheckpointError:
        return False
    return True
