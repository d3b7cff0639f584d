"""The task, and the built-in ones for tuples, dictionaries and pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from learnscope.task.batches import GROUP_KEYS, ID_KEYS, describe, example_ids, first_of, first_tensor, map_leaves
from learnscope.task.shapes import IGNORE, flatten_positions, is_single, like_logits, logits_in


@dataclass(frozen=True, slots=True)
class Outputs:
    """The results of one forward, only of the N positions that count: no padding, none that is ignored.

    logits: [N, C] for classes, [N] or [N, 1] for a single logit, [N, ...] for regression; the model's dtype.
    targets: [N], or the logits' shape for regression and several labels; None where the batch has none.
    losses: [N] in float32 or better; None where there are no targets.
    example: [N], the index in the batch of the example that each position belongs to.
    """

    logits: Tensor
    targets: Tensor | None
    losses: Tensor | None
    example: Tensor


@dataclass(frozen=True, slots=True)
class Positions:
    """The same without a copy of the logits.

    logits: [P, C], or [P], [P, 1], [P, ...] as in `Outputs`: all positions, also those that do not count.
    rows: [N], the positions that count; None if all do.
    targets: [N], aligned with the rows; None where the batch has none.
    example: [N], aligned with the rows: the index in the batch of the example that each belongs to.
    """

    logits: Tensor
    rows: Tensor | None
    targets: Tensor | None
    example: Tensor


class Task:
    """Override `logits` and `targets`, and whatever else does not fit.

    Integer targets are classes (or 0/1 for a model with a single logit); float targets are regression. Logits are
    [B, C], [B, T, C] or, for images, [B, C, H, W]; targets are the same without C. Train/eval flags and the grad mode
    are up to the caller.
    """

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        """The model's raw outputs for the batch, examples first."""
        raise TypeError(
            f"{type(self).__name__} does not define logits(model, batch): it cannot run {type(model).__name__} "
            f"on {describe(batch)}"
        )

    def targets(self, batch: Any) -> Tensor | None:  # noqa: ARG002 - the default has nothing to read
        """The targets; `IGNORE` at positions that do not count; None if unknown."""
        return None

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of each of N positions, in float32 or better.

        Integer targets: cross entropy of [N, C] logits, binary cross entropy of a single logit. Float targets:
        squared error, averaged over the dimensions after the first.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if targets.is_floating_point():
            error = (logits - like_logits(targets, logits).to(logits.dtype)).square()
            return error.flatten(1).mean(1) if error.ndim > 1 else error
        if is_single(logits):
            flat = logits.reshape(-1)
            return F.binary_cross_entropy_with_logits(flat, like_logits(targets, flat).to(flat.dtype), reduction="none")
        return F.cross_entropy(logits, targets.long(), reduction="none")

    def ids(self, batch: Any) -> Tensor | None:
        """Id of each example in the data set, [B]; None if the batch does not hold it."""
        return example_ids(first_of(batch, ID_KEYS))

    def groups(self, batch: Any) -> Tensor | Sequence[Any] | None:
        """Group of each example (a domain, a source), [B]; None if the batch does not hold it."""
        groups: Tensor | Sequence[Any] | None = first_of(batch, GROUP_KEYS)
        return groups

    def size(self, batch: Any) -> int:
        """Number of examples: the first dimension of the first tensor in the batch."""
        tensor = first_tensor(batch)
        if tensor is None:
            raise TypeError(f"no tensor in {describe(batch)}; override size(batch) to say how many examples it has")
        return int(tensor.shape[0])

    def to(self, batch: Any, device: torch.device | str) -> Any:
        """The batch on another device; containers are rebuilt, the caller's own are not changed."""
        device = torch.device(device)

        def move(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                # A non-blocking copy to the host may be read before it has arrived.
                return leaf.to(device, non_blocking=device.type != "cpu")
            return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf

        return map_leaves(batch, move)

    def take(self, batch: Any, n: int) -> Any:
        """The first `n` examples of the batch (all, if it has fewer); what is not per example stays whole."""
        if n < 1:
            raise ValueError(f"take at least one example, not {n}")
        size = self.size(batch)

        def cut(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf[:n] if leaf.ndim and leaf.shape[0] == size else leaf
            if isinstance(leaf, (list, tuple)) or getattr(leaf, "shape", None):  # a NumPy array
                return leaf[:n] if len(leaf) == size else leaf
            return leaf

        return map_leaves(batch, cut)

    @final
    def positions(self, model: nn.Module, batch: Any) -> Positions:
        """Forward the batch and give the positions that count, without copying their logits."""
        logits, targets, keep, example = self._positions(model, batch)
        if keep is None:
            return Positions(logits, None, targets, example)
        rows = keep.nonzero().squeeze(1)
        return Positions(logits, rows, None if targets is None else targets[rows], example[rows])

    @final
    def outputs(self, model: nn.Module, batch: Any) -> Outputs:
        """Forward the batch and keep the positions that count. Gradients flow if the grad mode is on."""
        positions = self.positions(model, batch)
        logits = positions.logits if positions.rows is None else positions.logits[positions.rows]
        losses = None if positions.targets is None else self.each_loss(model, logits, positions.targets)
        return Outputs(logits, positions.targets, losses, positions.example)

    @final
    def each_loss(self, model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
        """The losses of N positions that count, for targets as `outputs` and `positions` give them."""
        if not targets.is_floating_point() and is_single(logits) and bool(((targets != 0) & (targets != 1)).any()):
            raise ValueError(
                f"the model gives a single logit (shape {list(logits.shape)}), which is a yes/no answer, but "
                "integer targets other than 0 and 1 were seen; for regression make the targets float"
            )
        return self._each_loss(model, logits, targets)

    @final
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean of the losses over the positions that count; NaN if none does.

        Shapes do not depend on the data here, so that it works with `torch.func.vmap` and `grad`.
        """
        logits, targets, keep, _ = self._positions(model, batch)
        if targets is None:
            raise ValueError(f"a loss needs targets, and {describe(batch)} has none for {type(self).__name__}")
        if keep is None:
            return self._each_loss(model, logits, targets).mean()
        # Zeroed before the loss, not after it: a NaN at a padded position times 0 is still NaN.
        logits = torch.where(keep.view(-1, *[1] * (logits.ndim - 1)), logits, 0)
        targets = torch.where(keep.view(-1, *[1] * (targets.ndim - 1)), targets, 0)
        each = self._each_loss(model, logits, targets)
        return torch.where(keep, each, 0).sum() / keep.sum()

    def _positions(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        tensor = first_tensor(batch)
        if tensor is not None and tensor.shape[0] == 0:
            raise ValueError(f"the batch is empty: {describe(batch)}")
        return flatten_positions(*self._aligned(model, batch))

    @final
    def aligned_targets(self, model: nn.Module, batch: Any, logits: Tensor) -> Tensor | None:
        """Targets for given logits, position by position; `IGNORE` at positions that do not count."""
        _, targets, keep = self._aligned(model, batch, logits)
        return targets if targets is None or keep is None else torch.where(keep, targets, IGNORE)

    def _aligned(
        self, model: nn.Module, batch: Any, logits: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Logits, targets of the same positions, and which positions count (None: all)."""
        return self.logits(model, batch) if logits is None else logits, self.targets(batch), None

    def _each_loss(self, model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        return self.losses(logits, targets)


class TupleTask(Task):
    """`model(x)` of `(x, y)`, `[x, y]`, `(x, y, ids)`, `(x, y, ids, groups)`; of `(x,)` or a tensor without targets."""

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return logits_in(model(batch[0] if isinstance(batch, (tuple, list)) else batch))

    def targets(self, batch: Any) -> Tensor | None:
        return batch[1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None

    def ids(self, batch: Any) -> Tensor | None:
        return example_ids(batch[2]) if isinstance(batch, (tuple, list)) and len(batch) > 2 else None

    def groups(self, batch: Any) -> Tensor | Sequence[Any] | None:
        return batch[3] if isinstance(batch, (tuple, list)) and len(batch) > 3 else None


class DictTask(Task):
    """`model(batch[inputs])` against `batch[targets]`; several `inputs` are several positional arguments."""

    def __init__(self, inputs: str | Sequence[str] = "x", targets: str | None = "y") -> None:
        self.input_keys = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self.target_key = targets

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return logits_in(model(*(batch[key] for key in self.input_keys)))

    def targets(self, batch: Any) -> Tensor | None:
        return None if self.target_key is None else batch.get(self.target_key)

    def size(self, batch: Any) -> int:
        return super().size(batch[self.input_keys[0]])


class PairTask(Task):
    """`img1`, `img2`, `winner`: which of two wins. Logits are always [B, 2].

    The model is called as `model(img1, img2)`. A single logit z per pair is that of winner 1, and becomes
    [0, z]: the two-class cross entropy of that is the binary cross entropy of z.
    """

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        logits = logits_in(model(batch["img1"], batch["img2"]))
        if not is_single(logits):
            return logits
        single = logits.reshape(-1, 1)
        return torch.cat([torch.zeros_like(single), single], dim=1)

    def targets(self, batch: Any) -> Tensor | None:
        winner = batch.get("winner")
        if winner is None:
            return None
        winner = torch.as_tensor(winner).reshape(-1)
        if winner.is_floating_point() and bool((winner != winner.round()).any()):
            raise ValueError("`winner` must be 0 or 1; for soft preferences write a Task with your own losses")
        return winner.long()

    def size(self, batch: Any) -> int:
        return super().size(batch["img1"])
