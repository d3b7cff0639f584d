"""Which loss computed a number, from the names in its autograd graph."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from learnscope.task.losses import BINARY, BINARY_OF_PROBABILITIES, CROSS_ENTROPY, SMOOTH, SQUARED

_OF_GRAPH = {
    "MseLossBackward": SQUARED,
    "BinaryCrossEntropyWithLogitsBackward": BINARY,
    "BinaryCrossEntropyBackward": BINARY_OF_PROBABILITIES,
    "NllLossBackward": CROSS_ENTROPY,
    "NllLoss2DBackward": CROSS_ENTROPY,
    "SmoothL1LossBackward": SMOOTH,
}
_SAME_NUMBER = (
    "ToCopyBackward",
    "ViewBackward",
    "ReshapeAliasBackward",
    "SqueezeBackward",
    "CloneBackward",
    "AliasBackward",
)
_SCALED = ("DivBackward", "MulBackward")
_MEAN = 1
ROUNDING = 1e-6
"""Of a factor that is taken for 1."""


def loss_of_graph(loss: Tensor) -> tuple[str, bool] | None:
    """The loss that computed this number, and whether it is its mean rather than a multiple of that.

    Read from the autograd graph, which keeps the names of its functions also after a backward. None if it is not one
    of those above, or more than one is added up.
    """
    node: Any = loss.grad_fn
    exact, factor = loss.numel() == 1, 1.0
    for _ in range(8):
        if node is None:
            return None
        name = node.name().rstrip("0123456789")
        if name in _OF_GRAPH:
            exact = exact and abs(factor - 1) < ROUNDING and _is_plain_mean(node)
            return (_OF_GRAPH[name], exact) if _known_inside(name, node) else None
        if name not in _SAME_NUMBER and name not in _SCALED:
            return None
        if name in _SCALED:  # trainers divide by the number of micro-batches, and by 1 if there is one
            factor *= _factor(node, divides=name == "DivBackward")
        inputs = [function for function, _ in node.next_functions if function is not None]
        if len(inputs) != 1:
            return None
        node = inputs[0]
    return None


def _factor(node: Any, *, divides: bool) -> float:
    """What a product or quotient multiplies its input by; NaN where that is not known, as after a backward."""
    try:
        other = node._saved_other
        number = (
            float(other.detach()) if isinstance(other, Tensor) and other.is_cpu and other.numel() == 1 else math.nan
        )
    except RuntimeError:  # freed by the backward
        return math.nan
    return number if not divides else 1 / number if number else math.nan


def _is_plain_mean(node: Any) -> bool:
    beta = getattr(node, "_saved_beta", 1.0)
    return getattr(node, "_saved_reduction", None) == _MEAN and beta == 1.0 and not _weighted(node)


def _weighted(node: Any) -> bool:
    for name in ("_saved_weight", "_saved_pos_weight"):
        try:
            if getattr(node, name, None) is not None:
                return True
        except RuntimeError:  # freed by the backward, so there was one
            return True
    return False


def _known_inside(name: str, node: Any) -> bool:
    """A negative log likelihood is a cross entropy if it is taken of a log softmax."""
    if not name.startswith("NllLoss"):
        return True
    inputs = [function for function, _ in node.next_functions if function is not None]
    while inputs and inputs[0].name().rstrip("0123456789") in _SAME_NUMBER:
        inputs = [function for function, _ in inputs[0].next_functions if function is not None]
    return bool(inputs) and inputs[0].name().startswith("LogSoftmaxBackward")
