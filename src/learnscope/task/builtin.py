"""The built-in tasks for tuples, plain dictionaries, pairs, and models that return their own loss."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from learnscope.task.base import Task
from learnscope.task.batches import example_ids
from learnscope.task.given import given_loss
from learnscope.task.losses import LossCallable
from learnscope.task.shapes import IGNORE, is_single, logits_in, loss_in


class TupleTask(Task):
    """`model(x)` of `(x, y)`, `[x, y]`, `(x, y, ids)`, `(x, y, ids, groups)`; of `(x,)` or a tensor without targets.

    Args:
        inputs: how many of the first entries the model takes: 2 for `model(a, b)` of `(a, b, y)`.
        spread: the first entry holds the model's arguments: `model(a, b)` of `((a, b), y)`, or `model(**x)` of
            `(x, y)` with a dictionary x.
        loss: the training loop's loss, a function of (outputs, targets) or a module such as `nn.BCEWithLogitsLoss()`.
    """

    inputs, spread = 1, False  # for a subclass with an __init__ of its own

    def __init__(self, inputs: int = 1, *, spread: bool = False, loss: LossCallable | None = None) -> None:
        self.inputs, self.spread = inputs, spread
        if loss is not None:
            self.chosen_loss = given_loss(loss)

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        first = batch[0] if isinstance(batch, (tuple, list)) else batch
        if self.spread:
            return logits_in(model(**first) if hasattr(first, "keys") else model(*first))
        return logits_in(model(first) if self.inputs == 1 else model(*batch[: self.inputs]))

    def targets(self, batch: Any) -> Tensor | None:
        targets: Tensor | None = self._after_inputs(batch, 0)
        return targets

    def ids(self, batch: Any) -> Tensor | None:
        return example_ids(self._after_inputs(batch, 1))

    def groups(self, batch: Any) -> Tensor | Sequence[Any] | None:
        groups: Tensor | Sequence[Any] | None = self._after_inputs(batch, 2)
        return groups

    def _after_inputs(self, batch: Any, place: int) -> Any:
        place += self.inputs
        return batch[place] if isinstance(batch, (tuple, list)) and len(batch) > place else None


class OwnLossTask(TupleTask):
    """`model(x, y)` of `(x, y)` for models that take the targets and return logits and loss, in whatever order.

    The loss is the model's own: those of single positions are cross entropies (or squared errors), scaled so that
    their mean is what the model returned, if that is something else. Negative targets do not count.

    Args:
        name: of the forward's parameter that takes the targets.
        shift: whether the model itself compares position t of its logits with target t + 1.
    """

    def __init__(self, name: str = "targets", *, shift: bool = False) -> None:
        super().__init__()
        self.name, self.shift = name, shift

    def logits(self, model: nn.Module, batch: Any) -> Tensor:
        return self._forward(model, batch)[0]

    def targets(self, batch: Any) -> Tensor | None:
        targets = super().targets(batch)
        if targets is None or targets.is_floating_point():
            return targets
        targets = torch.where(targets < 0, IGNORE, targets)
        return F.pad(targets[:, 1:], (0, 1), value=IGNORE) if self.shift else targets

    def _forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | None]:
        output = model(batch[0], **{self.name: batch[1]})
        return logits_in(output), loss_in(output)


class DictTask(Task):
    """`model(batch[inputs])` against `batch[targets]`; several `inputs` are several positional arguments.

    Args:
        inputs: the key of what the model takes, or several.
        targets: the key of the targets, None if there are none.
        loss: as of `TupleTask`.
    """

    def __init__(
        self, inputs: str | Sequence[str] = "x", targets: str | None = "y", *, loss: LossCallable | None = None
    ) -> None:
        self.input_keys = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self.target_key = targets
        if loss is not None:
            self.chosen_loss = given_loss(loss)

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
