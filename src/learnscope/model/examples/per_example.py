"""The gradient of each example's own loss, for many examples at a time.

`torch.func` computes the gradients of a chunk of examples together. A chunk is as large as a memory limit allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from learnscope.model.data import DataError, cut, has_plain_values, is_per_example, joined, leaves
from learnscope.model.landscape.double_backward import twice_differentiable
from learnscope.model.landscape.loss import Saved, trainable
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.weights.lazy import unwrapped
from learnscope.model.weights.swap import swapped
from learnscope.task import Task
from learnscope.task.batches import describe, map_leaves
from learnscope.tensor.context import arithmetic_dtype
from learnscope.tensor.examples.products import RademacherProjection

MAX_BYTES = 256 << 20
EAGER = "vmap, eager attention"
WAYS = ("vmap", EAGER, "loop")
"""From the fastest to the one that always works: vmap, vmap with unfused attention, one example at a time."""

_COPIES = 4
"""Copies of a chunk's gradients at the peak: in autograd, by parameter, in rows, and the rows of the last chunk."""

Scalar = Callable[[nn.Module, Any], Tensor]
"""The function that is differentiated: from a model and a batch of one example to a number."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive examples: the index of the first, one gradient per row, the losses, and how they were computed."""

    start: int
    gradients: Tensor
    losses: Tensor
    how: str


def per_example_gradients(
    model: nn.Module, task: Task, batches: Iterable[Any], *,
    parameters: str | None = None, max_bytes: int = MAX_BYTES, project: int | None = None, seed: int = 0,
    function: Scalar | None = None,
) -> Iterator[Chunk]:  # fmt: skip
    """The gradient of every example's mean loss over its positions that count, in eval mode, in chunks.

    Rows hold the trainable parameters in the order of `named_parameters()`, tied ones once, each flattened, in
    float32 (float64 if the model is); `parameters` is a pattern that selects among their names. With `project`, rows
    are random projections to that many numbers, see `RademacherProjection`. An example without a position that counts
    has a loss and a gradient of NaN. `function` replaces the loss; its values are then returned as losses.

    Batches of one shape are joined and cut into chunks, so that gradients and the tensors that a forward saves for them
    stay within `max_bytes` (a chunk has at least one example). The model is left as it was, also between chunks.
    """
    per_example = PerExample(model, task, parameters=parameters, max_bytes=max_bytes, function=function)
    projection = None
    if project is not None:
        projection = RademacherProjection(per_example.size, project, seed=seed, keep_bytes=max_bytes)
    done = 0
    for batch in joined(task, batches, max_bytes):
        for part in per_example.parts(batch):
            gradients, losses = per_example(part)
            if projection is not None:
                gradients = projection(gradients)
            yield Chunk(done, gradients, losses, per_example.how)
            done += len(losses)
            del gradients  # otherwise a chunk would be held that the caller no longer needs
    if not done:
        raise DataError("the data given to learnscope is empty: there is no example to differentiate")


class PerExample:
    """Per-example gradients of one model, chunk by chunk. Between calls the model is in its own state.

    `weights`, by the names of `model.named_parameters()`, replace the model's own during a call: gradients at other
    weights without a second model. Buffers are the model's.
    """

    def __init__(
        self, model: nn.Module, task: Task, *,
        parameters: str | None = None, max_bytes: int = MAX_BYTES, function: Scalar | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}: it must be positive")
        self._wrapped, self._weights = model, weights
        self.model, self.task, self.max_bytes = unwrapped(model), task, max_bytes
        self.names = trainable(self.model, parameters)
        chosen = self._parameters()
        self.size = sum(p.numel() for p in chosen.values())
        self.dtype = arithmetic_dtype(*chosen.values())
        self.how = WAYS[0]
        self._saved: dict[str, int] = {}
        self._scalar = _Called(self.model, function or task.loss)

    def _parameters(self) -> dict[str, nn.Parameter]:
        """The chosen parameters; stand-ins of them while `differentiable`."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for name in self.names}

    def parts(self, batch: Any, *, rows: bool = True) -> Iterator[Any]:
        """The batch in chunks that fit the memory limit; they are larger if gradients are not needed as `rows`."""
        size = self.task.size(batch)
        if not size:
            raise DataError(f"the batch is empty: {describe(batch)}")
        example = cut(self.task, batch, 0, 1)
        shapes = describe(example)
        if shapes not in self._saved:
            self._saved[shapes] = self._saved_bytes(example)
        gradients = _COPIES * self.size * self.dtype.itemsize if rows else 0
        step = max(1, self.max_bytes // max(1, self._saved[shapes] + gradients))
        for start in range(0, size, step):
            yield cut(self.task, batch, start, min(start + step, size))

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Gradients [k, P] and losses [k] of a chunk, on the model's device."""
        batch = self.task.to(batch, model_device(self.model))
        first = WAYS.index("loop" if has_plain_values(batch, self.task.size(batch)) else self.how)
        for how in WAYS[first:]:
            if how == EAGER and all(c._attn_implementation in ("eager", None) for c in _attention_configs(self.model)):
                continue
            try:
                gradients, values = self._computed(batch, how)
            except RuntimeError as error:
                if how == "loop" or isinstance(error, torch.OutOfMemoryError):
                    raise
                continue
            self.how = how
            if how == EAGER and self.dtype == torch.float64:
                # eager attention masks with a number that its float32 softmax takes for minus infinity, and a position
                # that sees no other, such as padding on the left, becomes NaN: computed again with the own attention
                finite = values.isfinite() & gradients.isfinite().all(1)
                for i in (~finite).nonzero().flatten().tolist():
                    row, value = self._computed(cut(self.task, batch, i, i + 1), "loop")
                    gradients[i], values[i] = row[0], value[0]
            if (unknown := values.isnan()).any():
                gradients[unknown] = torch.nan  # without a loss there is no gradient, rather than a gradient of zero
            return gradients, values
        raise AssertionError("the loop either returns or raises")

    @contextmanager
    def differentiable(self) -> Iterator[None]:
        """The model as a call uses it: guarded, and with `weights` if there are any."""
        with twice_differentiable(self.model, widen=False), swapped(self._wrapped, self._weights or {}):
            yield

    def _computed(self, batch: Any, how: str) -> tuple[Tensor, Tensor]:
        with self.differentiable(), eager_attention(self.model) if how == EAGER else nullcontext():
            return self._looped(batch) if how == "loop" else self._mapped(batch)

    def _mapped(self, batch: Any) -> tuple[Tensor, Tensor]:
        size = self.task.size(batch)
        weights = {f"model.{name}": p.detach() for name, p in self._parameters().items()}
        rows = [leaf for leaf in leaves(batch) if is_per_example(leaf, size)]

        def of_one(weights: dict[str, Tensor], rows: list[Tensor]) -> Tensor:
            # only tensors go through vmap: the batch is rebuilt around those of each example
            values = iter(rows)
            example = map_leaves(batch, lambda leaf: next(values).unsqueeze(0) if is_per_example(leaf, size) else leaf)
            value: Tensor = functional_call(self._scalar, weights, (example,))
            return value

        by_parameter, values = vmap(grad_and_value(of_one), in_dims=(None, 0))(weights, rows)
        gradients = torch.empty(size, self.size, dtype=self.dtype, device=values.device)
        start = 0
        for name in weights:
            part = by_parameter.pop(name).detach()  # freed as soon as it is copied
            shape = tuple(part.shape[1:]) or (1,)
            width = part[0].numel()
            gradients[:, start : start + width].unflatten(1, shape).copy_(part.reshape(size, *shape))
            start += width
        return gradients, values.detach()

    def _looped(self, batch: Any) -> tuple[Tensor, Tensor]:
        size = self.task.size(batch)
        chosen = list(self._parameters().values())
        gradients = torch.zeros(size, self.size, dtype=self.dtype, device=model_device(self.model))
        values: list[Tensor] = []
        for i in range(size):
            value = self._scalar(cut(self.task, batch, i, i + 1))
            values.append(value.detach())
            if not value.requires_grad:
                continue
            start = 0
            for p, g in zip(chosen, torch.autograd.grad(value, chosen, allow_unused=True), strict=True):
                if g is not None:
                    dense = g if g.layout == torch.strided else g.to_dense()
                    gradients[i, start : start + p.numel()] = dense.reshape(-1)
                start += p.numel()
        return gradients, torch.stack(values)

    def _saved_bytes(self, example: Any) -> int:
        """Bytes that the forward of one example saves for its backward, beside the parameters.

        A forward that fails does so here, as it would in training, and not with an error of vmap.
        """
        # a slice of a batch would count with the memory of the whole batch
        example = map_leaves(example, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)
        with self.differentiable():
            saved = Saved(list(self.model.parameters()))
            with saved:
                self._scalar(self.task.to(example, model_device(self.model)))
            return saved.bytes


class _Called(nn.Module):
    """The function that is differentiated as a module, so that `functional_call` can replace the model's weights."""

    def __init__(self, model: nn.Module, function: Scalar) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, batch: Any) -> Tensor:
        return self.function(self.model, batch)


@contextmanager
def eager_attention(model: nn.Module) -> Iterator[None]:
    """Hugging Face's attention in plain operations; the former implementation is restored afterwards."""
    before = [(config, config._attn_implementation) for config in _attention_configs(model)]
    try:
        for config, _ in before:
            config._attn_implementation = "eager"
        yield
    finally:
        # outer ones first: setting one also sets those inside it
        for config, implementation in before:
            config._attn_implementation = implementation


def _attention_configs(model: nn.Module) -> list[Any]:
    """Every configuration with an attention implementation, outer ones before those inside them."""
    configs: dict[int, Any] = {}
    queue = [getattr(module, "config", None) for module in model.modules()]
    while queue:
        config = queue.pop(0)
        if config is None or id(config) in configs or not hasattr(config, "_attn_implementation"):
            continue
        configs[id(config)] = config
        queue[:0] = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(configs.values())
