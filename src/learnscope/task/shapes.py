"""Aligning logits with targets of various shapes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from learnscope.task.batches import describe

IGNORE = -100
"""A position with this target is left out, as everywhere in PyTorch."""


def predictions(logits: Tensor) -> Tensor:
    """The predicted class of each position: the largest logit, or whether a single one is above 0.

    -1 where a logit is NaN: such a row predicts nothing, although argmax would give a class.
    """
    if is_single(logits):
        flat = logits.reshape(-1)
        return torch.where(flat.isnan(), -1, (flat > 0).long())
    return torch.where(logits.isnan().any(-1), -1, logits.argmax(-1))


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether each position's prediction is its target, as booleans; for classes only."""
    if targets.is_floating_point():
        raise TypeError("float targets are regression: there is no correct or wrong, only an error")
    predicted = predictions(logits)
    return predicted == targets.reshape(predicted.shape)


def is_single(logits: Tensor) -> bool:
    """Whether there is one logit per position: a yes/no answer."""
    return logits.ndim < 2 or logits.shape[-1] == 1


OUTPUT_NAMES = ("logits", "output", "outputs", "out", "prediction", "predictions", "preds", "pred", "scores", "recon")
"""What the outputs that count are called in a dictionary or an object, in the order in which they are looked for."""


def logits_in(output: Any) -> Tensor:
    """The outputs that count: a tensor itself, the first one of a tuple, the one with a usual name, or the only one."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        # A scalar in front is the model's own loss.
        logits = next((item for item in output if isinstance(item, Tensor) and item.ndim > 0), None)
    else:
        items = named_items(output)
        items.setdefault("logits", getattr(output, "logits", None))  # which may be a property
        named = {name: item for name, item in items.items() if isinstance(item, Tensor) and item.ndim}
        only = next(iter(named.values())) if len(named) == 1 else None
        logits = next((named[name] for name in OUTPUT_NAMES if name in named), only)
    if not isinstance(logits, Tensor):
        raise TypeError(f"no logits in the model's output, {describe(output)}; write a Task whose logits() finds them")
    return logits


def loss_in(output: Any) -> Tensor | None:
    """The model's own loss in its output, a floating number that stands by itself; None if there is none."""
    if isinstance(output, Tensor):
        return None
    plain = isinstance(output, (tuple, list)) and not hasattr(output, "_fields")
    items = list(output) if plain else [named_items(output).get("loss")]
    numbers = [item for item in items if isinstance(item, Tensor) and item.numel() == 1 and item.is_floating_point()]
    return next((item.reshape(()) for item in numbers if not plain or item.ndim == 0), None)


def named_items(output: Any) -> dict[str, Any]:
    """What a dictionary, a named tuple, a dataclass or another object holds, by name."""
    if isinstance(output, Mapping):
        return {str(name): item for name, item in output.items()}
    if hasattr(output, "_fields"):
        return dict(zip(output._fields, output, strict=True))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return dict(vars(output)) if hasattr(output, "__dict__") else {}


def flatten_positions(
    logits: Tensor, targets: Tensor | None, keep: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """All positions in one dimension, without a host sync: logits, targets, which count, example of each."""
    logits = logits.reshape(1) if logits.ndim == 0 else logits  # a model that squeezes a batch of one
    if targets is not None and not targets.is_floating_point():
        logits, targets = _match(logits, targets.long())
        counted = targets != IGNORE
        keep = counted if keep is None else keep & counted
    elif targets is not None:
        targets = like_logits(targets, logits)
    if keep is None:
        return logits, targets, None, torch.arange(logits.shape[0], device=logits.device)
    rows = torch.arange(keep.shape[0], device=logits.device)
    example = rows.view(-1, *[1] * (keep.ndim - 1)).expand(keep.shape).reshape(-1)
    logits = logits.reshape(-1, *logits.shape[keep.ndim :])
    return logits, None if targets is None else targets.reshape(-1), keep.reshape(-1), example


def like_logits(targets: Tensor, logits: Tensor) -> Tensor:
    """Targets in the logits' shape. Otherwise [N] against [N, 1] would silently broadcast to [N, N]."""
    if _trimmed(targets) != _trimmed(logits):
        raise ValueError(_mismatch(logits, targets))
    return targets.reshape(logits.shape)


def same_entries(logits: Tensor, targets: Tensor) -> bool:
    """Whether there is a target for each entry of the logits; dimensions of length 1 at the end do not matter."""
    return _trimmed(logits) == _trimmed(targets)


def _match(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits as `targets.shape` or `targets.shape + (C,)`; extra dimensions of length 1 are dropped on either side."""
    if targets.ndim == logits.ndim > 1 and targets.shape[-1] == 1 != logits.shape[-1]:
        targets = targets.squeeze(-1)
    if logits.ndim == targets.ndim + 1:
        last = logits.shape[:-1] == targets.shape
        second = logits.shape[0] == targets.shape[0] and logits.shape[2:] == targets.shape[1:]
        if second and (logits.ndim > 3 or not last):
            return logits.movedim(1, -1), targets
        if last:
            return logits, targets
    if _trimmed(logits) == _trimmed(targets):
        return logits.reshape(_trimmed(logits)), targets.reshape(_trimmed(targets))
    raise ValueError(_mismatch(logits, targets))


def _trimmed(tensor: Tensor) -> tuple[int, ...]:
    shape = list(tensor.shape) or [1]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return tuple(shape)


def _mismatch(logits: Tensor, targets: Tensor) -> str:
    kind = "float (regression)" if targets.is_floating_point() else "integer (class)"
    return f"{kind} targets of shape {list(targets.shape)} do not fit logits of shape {list(logits.shape)}"
