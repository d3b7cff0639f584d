"""The loop's own calls of torch's loss functions: what they are given is summed up at the steps that are looked at.

Functions and modules of `torch.nn` look their kernels up in torch's C extension when they run, however they were
imported. The kernels are wrapped there for the steps for which a probe needs them, and torch's own are back in their
places afterwards: at all other steps nothing is different. While something is being compiled the wrapper does nothing,
so that it never becomes part of a graph; a loss inside a compiled function is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.core.handed import Form, LossCall
from learnscope.session.telling.listeners import Listeners
from learnscope.tensor.outputs.objective import (
    answer_sums,
    class_sums,
    number_sums,
    sign_sums,
    stride_for,
    triplet_sums,
)
from learnscope.tensor.outputs.small_objective import is_small, small_touched

Listener = Callable[[str, Tensor, Tensor, dict[str, Any], Tensor], None]

REDUCTIONS = ("none", "mean", "sum")
_KERNELS: dict[str, tuple[Any, str, Form, tuple[str, ...]]] = {
    "cross_entropy": (
        torch._C._nn, "cross_entropy_loss", "classes", ("weight", "reduction", "ignore_index", "label_smoothing"),
    ),
    "nll_loss": (torch._C._nn, "nll_loss_nd", "classes", ("weight", "reduction", "ignore_index")),
    "binary_cross_entropy": (torch._C._nn, "binary_cross_entropy", "answers", ("weight", "reduction")),
    "binary_cross_entropy_with_logits": (
        torch, "binary_cross_entropy_with_logits", "answers", ("weight", "pos_weight", "reduction"),
    ),
    "mse_loss": (torch._C._nn, "mse_loss", "numbers", ("reduction",)),
    "l1_loss": (torch._C._nn, "l1_loss", "numbers", ("reduction",)),
    "smooth_l1_loss": (torch._C._nn, "smooth_l1_loss", "numbers", ("reduction",)),
    "huber_loss": (torch._C._nn, "huber_loss", "numbers", ("reduction",)),
    "cosine_embedding_loss": (torch, "cosine_embedding_loss", "signs", ("margin", "reduction")),
    "margin_ranking_loss": (torch, "margin_ranking_loss", "signs", ("margin", "reduction")),
    "hinge_embedding_loss": (torch, "hinge_embedding_loss", "signs", ("margin", "reduction")),
    "soft_margin_loss": (torch._C._nn, "soft_margin_loss", "signs", ("reduction",)),
    "triplet_margin_loss": (
        torch, "triplet_margin_loss", "triplets", ("negative", "margin", "p", "eps", "swap", "reduction"),
    ),
}  # fmt: skip
"""Where each function finds its kernel, and how that names its arguments after the outputs and the targets."""
_OF_PAIRS = ("cosine_embedding_loss", "margin_ranking_loss")
"""Functions that take two outputs before the targets."""
MOST_GRADIENTS = 2**24
"""Entries of the outputs up to which their gradient is read."""
FIRST_ROWS = 16
"""Rows of a gradient that are looked at before all are."""
MOST_NODES = 5_000
"""Nodes of a graph that are visited to learn whose loss it is."""

_replaced: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""By function: torch's kernel, and ours in its place."""


def _replace() -> None:
    for function, (place, kernel, _, names) in _KERNELS.items():
        original = getattr(place, kernel, None)
        if original is not None:
            _replaced[function] = original, _announcing(function, original, names)
            setattr(place, kernel, _replaced[function][1])


def _restore() -> None:
    for function, (original, ours) in _replaced.items():
        place, kernel, *_ = _KERNELS[function]
        if getattr(place, kernel) is ours:  # else somebody has wrapped it since, and calls ours, which only passes on
            setattr(place, kernel, original)
    _replaced.clear()


listeners: Listeners[Listener] = Listeners(_replace, _restore)
"""Called after each call of a loss function: name, outputs, targets, options, what it returned. torch's own functions
are back in their places when nobody listens any more."""


def _announcing(function: str, original: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    def loss(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
        value = original(input, target, *args, **kwargs)
        if function in _OF_PAIRS and args:
            target, args = args[0], args[1:]
        if torch.compiler.is_compiling() or not _is_trained(input, value):
            return value
        options = dict(zip(names, args, strict=False)) | kwargs
        for listener in listeners:
            listener(function, input, target, options, value)
        return value

    return loss


def _is_trained(outputs: Any, value: Any) -> bool:
    """Whether a backward may come by ordinary outputs: not of `torch.func`, of a subclass, or being traced."""
    return (
        torch.is_grad_enabled() and type(outputs) in (Tensor, nn.Parameter) and isinstance(value, Tensor)
        and value.requires_grad and outputs.requires_grad
        and not torch._C._functorch.is_functorch_wrapped_tensor(outputs)
        and torch._C._current_graph_task_id() == -1  # else a checkpointed forward runs again, inside the backward
        and not (outputs.is_cuda and torch.cuda.is_current_stream_capturing())
    )  # fmt: skip


def summed_up(function: str, outputs: Tensor, targets: Tensor, options: dict[str, Any], value: Tensor) -> LossCall:
    """A call in small tensors that hold nothing of what it was given; under `plain_arithmetic`."""
    form, weight = _KERNELS[function][2], options.get("weight")
    given, wanted = outputs.detach(), targets.detach()
    call = LossCall(
        function=function, reduction=REDUCTIONS[options.get("reduction", 1)], form=form,
        width=width_of(given, form), value=_mean(value.detach()), entries=given.numel(),
        rows=rows_looked_at(given, form), looked_at=stride_for(given),
        weighted=weight is not None or options.get("pos_weight") is not None,
    )  # fmt: skip
    if form == "classes":
        call.ignore_index, call.smoothing = options["ignore_index"], options.get("label_smoothing", 0.0)
        call.entries, call.soft = given.numel() // max(call.width, 1), wanted.is_floating_point()
        call.weight = None if weight is None else weight.detach().clone()
        call.sums = class_sums(given, wanted, call.ignore_index, call.weight)
    elif form == "answers":
        call.sums = answer_sums(given, wanted, logits=function.endswith("with_logits"))
    elif form == "signs":
        call.entries, call.sums = wanted.numel(), sign_sums(wanted)
    elif form == "triplets":
        call.entries, far = len(given), options["negative"].detach()
        call.sums = triplet_sums(given, wanted, far, float(options.get("margin", 1.0)))
    else:
        call.broadcast = _broadcast(given, wanted)
        call.sums = number_sums(given, wanted, median=function == "l1_loss")
    return call


def follow_gradient(call: LossCall, outputs: Tensor, safely: Callable[..., Any] = lambda action: action) -> None:
    """Note, when a backward comes by the outputs, which of their columns it touches. The gradient is not changed.

    `safely` wraps what is called within the backward, which must not fail because of it.
    """
    if not outputs.is_leaf:
        outputs.register_hook(partial(safely(come_by), call))


def come_by(call: LossCall, gradient: Tensor) -> None:
    call.reached += 1
    if gradient.numel() > MOST_GRADIENTS or call.function == "nll_loss" or torch.compiler.is_compiling():
        return
    given = gradient.detach().reshape(-1, call.width) if gradient.ndim < 2 else gradient.detach()
    if given.ndim == 2 and is_small(first := given[:FIRST_ROWS]) and bool((touched := small_touched(first)).all()):
        pass  # as of most losses: every row has a gradient in every column
    elif is_small(given) and given.ndim == 2:
        touched = small_touched(given)
    else:
        touched = (given != 0).any(0) if given.ndim == 2 else (given != 0).flatten(2).any(2).any(0)
    call.touched = touched if call.touched is None else call.touched | touched


def _mean(value: Tensor) -> Tensor:
    """A copy: a loop may divide its loss in place."""
    return value.clone() if value.ndim == 0 else value.double().mean()


def width_of(outputs: Tensor, form: Form) -> int:
    """How many columns outputs have: their second dimension; of a single row of classes, the only one."""
    return outputs.shape[1] if outputs.ndim > 1 else outputs.numel() if form == "classes" else 1


def rows_looked_at(outputs: Tensor, form: Form) -> int:
    stride = stride_for(outputs)
    if outputs.ndim < 3:
        return 1 if form == "classes" and outputs.ndim < 2 else -(-outputs.shape[:1].numel() // stride)
    return outputs.shape[0] * -(-outputs.shape[2:].numel() // stride)


def _broadcast(outputs: Tensor, targets: Tensor) -> float:
    """Entries compared for each that the larger of outputs and targets had before torch broadcast them."""
    held = [_without_repeats(tensor) for tensor in (outputs, targets)]
    return outputs.numel() / max(*held, 1)


def _without_repeats(tensor: Tensor) -> int:
    size = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= 1 if stride == 0 else length
    return size


def is_of(outputs: Tensor, parameters: Collection[int]) -> bool:
    """Whether outputs come from these parameters (ids): False if all that are found in their graph are others."""
    if outputs.is_leaf:
        return id(outputs) in parameters
    waiting, others = [outputs.grad_fn], False
    seen: set[Any] = set()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            if id(leaf) in parameters:
                return True
            others = others or isinstance(leaf, nn.Parameter)
        waiting += [following for following, _ in node.next_functions]
    return not others
