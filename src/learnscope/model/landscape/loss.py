"""The mean loss on fixed batches as a function of a model's parameters: value, gradient, Hessian-vector products."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learnscope.model.landscape.double_backward import HALF, explained, watch_custom_functions
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.weights.swap import swapped
from learnscope.task import Task
from learnscope.task.batches import describe, map_leaves
from learnscope.tensor.examples.products import widest_dtype
from learnscope.tensor.landscape.curvature import Vector


def trainable(model: nn.Module, pattern: str | None = None) -> list[str]:
    """Names of the trainable floating-point parameters that match `pattern`; refuses an empty selection."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}
    if not named:
        raise ValueError("no parameter of the model requires a gradient: there is nothing to differentiate")
    chosen = [name for name in named if pattern is None or re.search(pattern, name)]
    if not chosen:
        raise ValueError(
            f"parameters={pattern!r} is found in none of the {len(named)} trainable parameters' names, "
            f"which begin with {', '.join(list(named)[:3])}"
        )
    for name in chosen:
        if hasattr(named[name], "device_mesh"):
            raise ValueError(
                f"parameter {name} is sharded over several devices, and its derivatives are taken of the whole: "
                "use a saved checkpoint, e.g. with ls.audit or ls.replay"
            )
    return chosen


class Landscape:
    """L(w) = Σ losses / number of positions that count, over all batches, as a function of some parameters w.

    To be created and used under `twice_differentiable`. `self.names` are those of the given names that the loss
    depends on. Vectors hold all of these parameters, flattened and concatenated.
    """

    def __init__(self, model: nn.Module, task: Task, batches: Sequence[Any], names: Sequence[str]) -> None:
        self.model, self.task = model, task
        device = model_device(model)
        self._batches = [_in_dtype_of(model, task.to(batch, device)) for batch in batches]
        own = dict(model.named_parameters())
        self.counted = 0
        self.loss = 0.0
        total: dict[str, Tensor] = {}
        for losses in map(self._losses, self._batches):
            self.counted += losses.numel()
            self.loss += _sum(losses)
            if losses.requires_grad:
                with explained(model):
                    computed = torch.autograd.grad(losses.sum(), [own[name] for name in names], allow_unused=True)
                for name, g in zip(names, computed, strict=True):
                    if g is not None:
                        total[name] = total[name] + g if name in total else g
        if not self.counted:
            raise ValueError("no position of the holdout batches has a target that counts: there is no loss to measure")
        self.loss /= self.counted
        self.names = [name for name in names if name in total]
        if not self.names:
            raise ValueError(
                f"the loss depends on none of the {len(names)} chosen parameters, first: {names[0]}; "
                "choose others with parameters="
            )
        self.parameters = [own[name] for name in self.names]
        self.sizes = [p.numel() for p in self.parameters]
        self.n = sum(self.sizes)
        self._wide = torch.float64 if any(p.dtype == torch.float64 for p in self.parameters) else torch.float32
        self.gradient = self._flat([total[name].detach() / self.counted for name in self.names])
        self._graphs: list[list[Tensor]] | None = None

    @property
    def dtype(self) -> str:
        """The dtype in which products are computed."""
        return " and ".join(sorted({str(p.dtype).removeprefix("torch.") for p in self.parameters}))

    def keep_graphs(self, limit: int) -> bool:
        """Build the graph of the gradient once for all products, if its saved tensors stay within `limit` bytes."""
        graphs: list[list[Tensor]] = []
        saved = Saved(self.parameters)
        with saved:
            for batch in self._batches:
                graphs.append(self._graph(batch))
                saved.bytes += sum(g.numel() * g.element_size() for g in graphs[-1])
                if saved.bytes > limit:
                    return False
        self._graphs = graphs
        return True

    def product(self, vector: Vector) -> Vector:
        """H·v, by differentiating g·v. Zero for a parameter that the gradient does not depend on."""
        pieces = [
            piece.to(p.device, p.dtype).view(p.shape)
            for piece, p in zip(self._split(vector), self.parameters, strict=True)
        ]
        total = [torch.zeros_like(p) for p in self.parameters]
        reused = self._graphs is not None
        for graph in self._graphs if self._graphs is not None else map(self._graph, self._batches):
            curved = [(g, v) for g, v in zip(graph, pieces, strict=True) if g.requires_grad]
            if not curved:  # the loss is linear in the parameters
                continue
            gradients, vectors = zip(*curved, strict=True)
            with explained(self.model):
                parts = torch.autograd.grad(gradients, self.parameters, vectors, retain_graph=reused, allow_unused=True)
            for into, part in zip(total, parts, strict=True):
                if part is not None:
                    into += part.detach()
        return self._flat(total)

    def loss_at(self, direction: Vector, position: float) -> float:
        """L(w + position·direction); the weights are exchanged meanwhile and restored bit for bit."""
        weights = {}
        for name, p, piece in zip(self.names, self.parameters, self._split(direction), strict=True):
            wide = widest_dtype(p.device)
            moved = p.detach().to(wide) + position * piece.to(wide).to(p.device).view(p.shape)
            weights[name] = moved.to(p.dtype)
        with swapped(self.model, weights):
            return sum(_sum(self._losses(batch)) for batch in self._batches) / self.counted

    def weight_norm(self) -> float:
        norms = [
            torch.linalg.vector_norm(p.detach(), dtype=widest_dtype(p.device)).cpu().double() for p in self.parameters
        ]
        return float(torch.linalg.vector_norm(torch.stack(norms)))

    def difference(self, before: Mapping[str, Tensor]) -> Vector:
        """w − before, by name, as one vector."""
        return np.concatenate([
            (p.detach().cpu().double() - before[name].cpu().double()).reshape(-1).numpy()
            for name, p in zip(self.names, self.parameters, strict=True)
        ])  # fmt: skip

    def _losses(self, batch: Any) -> Tensor:
        losses = self.task.outputs(self.model, batch).losses
        if losses is None:
            raise ValueError(
                f"a loss needs targets, and {describe(batch)} has none for {type(self.task).__name__}: "
                "give holdout data with targets"
            )
        return losses

    def _graph(self, batch: Any) -> list[Tensor]:
        """The contribution of one batch to the gradient, differentiable once more."""
        loss = self._losses(batch).sum() / self.counted
        watch_custom_functions(loss)
        with explained(self.model):
            computed = torch.autograd.grad(loss, self.parameters, create_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(computed, self.parameters, strict=True)]

    def _split(self, vector: Vector) -> Sequence[Tensor]:
        flat = torch.from_numpy(np.ascontiguousarray(vector)).to(self._wide)
        pieces: Sequence[Tensor] = flat.to(self.parameters[0].device).split(self.sizes)
        return pieces

    def _flat(self, tensors: Sequence[Tensor]) -> Vector:
        device = self.parameters[0].device
        dense = [t.detach() if t.layout == torch.strided else t.detach().to_dense() for t in tensors]
        flat: Vector = torch.cat([t.reshape(-1).to(device, self._wide) for t in dense]).cpu().numpy()
        return flat


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that graphs built inside keep in memory beside the parameters."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.bytes = 0
        self._seen = {p.untyped_storage().data_ptr() for p in parameters}
        super().__init__(self._count, lambda saved: saved)

    def _count(self, tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self.bytes += storage.nbytes()
        # the tensor itself would form a cycle with the graph that holds it; autograd restores the history on unpacking
        return tensor.detach()


def _in_dtype_of(model: nn.Module, batch: Any) -> Any:
    """Half-precision inputs as float32 if the model's weights have been widened."""
    if any(p.dtype in HALF for p in model.parameters()):
        return batch
    return map_leaves(batch, lambda leaf: leaf.float() if isinstance(leaf, Tensor) and leaf.dtype in HALF else leaf)


def _sum(losses: Tensor) -> float:
    return float(losses.detach().cpu().double().sum())
