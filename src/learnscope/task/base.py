"""The task: what every built-in one and a user's own have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from learnscope.task.batches import GROUP_KEYS, ID_KEYS, describe, example_ids, first_of, first_tensor, map_leaves
from learnscope.task.given import GivenLoss, shared
from learnscope.task.losses import LossFunction, in_float32, usual_loss
from learnscope.task.shapes import IGNORE, flatten_positions, is_single


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

    chosen_loss: LossFunction | None = None
    """Which loss `losses` computes, unless it is overridden; None for that of the kind of targets. A session sets it
    when it opens, from `loss=`, from what the model returns, or to its best guess."""

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
        """Loss of each of N positions, in float32 or better: of `chosen_loss`, if there is one. Otherwise:

        Integer targets: cross entropy of [N, C] logits, binary cross entropy of a single logit. Float targets:
        squared error, averaged over the dimensions after the first.
        """
        chosen = usual_loss if self.chosen_loss is None else self.chosen_loss.function
        each: Tensor = chosen(in_float32(logits), targets)
        return each

    def ids(self, batch: Any) -> Tensor | None:
        """Id of each example in the data set, [B]; None if the batch does not hold it."""
        return example_ids(first_of(batch, ID_KEYS))

    def groups(self, batch: Any) -> Tensor | Sequence[Any] | None:
        """Group of each example (a domain, a source), [B]; None if the batch does not hold it."""
        groups: Tensor | Sequence[Any] | None = first_of(batch, GROUP_KEYS)
        return groups

    def show(self, example: Any) -> Any:
        """What a report shows of an example of the data set given to `ExampleLedger(show=…)`: a text, an image, or what
        contains one. By default the example itself."""
        return example

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
        return _counting(self._positions(model, batch, self._forward(model, batch)[0]))

    @final
    def outputs(self, model: nn.Module, batch: Any) -> Outputs:
        """Forward the batch and keep the positions that count. Gradients flow if the grad mode is on."""
        return self._read(model, batch, *self._forward(model, batch))

    def _read(self, model: nn.Module, batch: Any, raw: Tensor, own: Tensor | None) -> Outputs:
        """What `_forward` gave, position by position."""
        positions = _counting(self._positions(model, batch, raw))
        logits = positions.logits if positions.rows is None else positions.logits[positions.rows]
        if positions.targets is None:
            return Outputs(logits, None, None, positions.example)
        if (whole := self._whole_loss()) is not None:
            each, own = whole.of_examples(*self._for_whole_loss(model, batch, raw))
            losses = each[positions.example]
        else:
            losses = self.each_loss(model, logits, positions.targets)
        if own is not None and (whole is not None or self._given() is None):
            losses = shared(losses, own)
        return Outputs(logits, positions.targets, losses, positions.example)

    @final
    def each_loss(self, model: nn.Module, logits: Tensor, targets: Tensor) -> Tensor:
        """The losses of N positions that count, for targets as `outputs` and `positions` give them."""
        yes_no = not targets.is_floating_point() and is_single(logits) and self._given() is None
        if yes_no and bool(((targets != 0) & (targets != 1)).any()):
            raise ValueError(
                f"the model gives a single logit (shape {list(logits.shape)}), which is a yes/no answer, but "
                "integer targets other than 0 and 1 were seen; for regression make the targets float, or pass loss="
            )
        return self._each_loss(model, logits, targets)

    @final
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean of the losses over the positions that count; NaN if none does. The model's own loss if it returns one.

        Shapes do not depend on the data here, so that it works with `torch.func.vmap` and `grad`.
        """
        raw, own = self._forward(model, batch)
        logits, targets, keep, _ = self._positions(model, batch, raw)
        if targets is None:
            raise ValueError(f"a loss needs targets, and {describe(batch)} has none for {type(self).__name__}")
        if own is not None and self._given() is None:
            return own
        if (whole := self._whole_loss()) is not None:
            return whole.mean(*self._for_whole_loss(model, batch, raw))
        if keep is None:
            return self._each_loss(model, logits, targets).mean()
        # Zeroed before the loss, not after it: a NaN at a padded position times 0 is still NaN.
        logits = torch.where(keep.view(-1, *[1] * (logits.ndim - 1)), logits, 0)
        targets = torch.where(keep.view(-1, *[1] * (targets.ndim - 1)), targets, 0)
        each = self._each_loss(model, logits, targets)
        return torch.where(keep, each, 0).sum() / keep.sum()

    def _forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None]:
        """The logits, and the loss that the model itself gives for the batch, if it gives one."""
        return self.logits(model, batch), None

    def _positions(
        self, model: nn.Module, batch: Any, logits: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        tensor = first_tensor(batch)
        if tensor is not None and tensor.shape[0] == 0:
            raise ValueError(f"the batch is empty: {describe(batch)}")
        logits, targets, keep = self._aligned(model, batch, logits)
        ignored = getattr(getattr(self._given(), "loss", None), "ignore_index", IGNORE)
        if targets is not None and not targets.is_floating_point() and ignored != IGNORE:
            targets = torch.where(targets == ignored, IGNORE, targets)
        return flatten_positions(logits, targets, keep)

    def _given(self) -> GivenLoss | None:
        chosen = self.chosen_loss
        return chosen.function if chosen is not None and isinstance(chosen.function, GivenLoss) else None

    def _whole_loss(self) -> GivenLoss | None:
        """A given loss that knows only how to judge whole examples."""
        chosen = self.chosen_loss
        return self._given() if chosen is not None and not chosen.by_position else None

    def _for_whole_loss(self, model: nn.Module, batch: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and targets as the loop would hand them to its loss."""
        logits, targets, keep = self._aligned(model, batch, logits)
        assert targets is not None
        return in_float32(logits), targets if keep is None else torch.where(keep, targets, IGNORE)

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


def _counting(flat: tuple[Tensor, Tensor | None, Tensor | None, Tensor]) -> Positions:
    logits, targets, keep, example = flat
    if keep is None:
        return Positions(logits, None, targets, example)
    rows = keep.nonzero().squeeze(1)
    return Positions(logits, rows, None if targets is None else targets[rows], example[rows])
