"""A loss that the user gives, for each position and for all together."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from learnscope.task.losses import CROSS_ENTROPY, LossCallable, LossFunction, agrees, in_float32, mean_of_each, named
from learnscope.task.shapes import IGNORE, like_logits, same_entries


def given_loss(loss: LossCallable) -> LossFunction:
    """A loss that the user gives: a function of outputs and targets, or a module such as `nn.BCEWithLogitsLoss()`."""
    if not callable(loss) or isinstance(loss, type):
        hint = f"write {loss.__name__}() with its parentheses" if isinstance(loss, type) else "nn.MSELoss(), say"
        raise TypeError(f"loss={loss!r} is no function of (outputs, targets): {hint}")
    name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", type(loss).__name__)
    given = GivenLoss(loss)
    if _is_plain_cross_entropy(loss):
        return named(CROSS_ENTROPY, "known", f"{name}, given as loss=")
    if given.reduction == "sum":
        why = "given as loss=, with sums: each position's is the sum over its entries, and the loop's one of a batch"
        return LossFunction(f"{name}, sum over each position", given, "guessed", why)
    return LossFunction(name, given, "known", f"{name}, given as loss=", by_position=given.unreduced is not None)


@dataclass(frozen=True)
class GivenLoss:
    """The user's loss for each of N positions, so that their mean is what it gives for all of them together."""

    loss: LossCallable
    _wants: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    """Whether a function of the user's own takes targets in the shape of the outputs, once a batch has told."""

    @property
    def reduction(self) -> str | None:
        """How it combines the losses of entries; None if it does not say."""
        if isinstance(self.loss, nn.Module):
            own = getattr(self.loss, "reduction", None)
            return own if isinstance(own, str) else None
        try:
            default = inspect.signature(self.loss).parameters["reduction"].default
        except (KeyError, TypeError, ValueError):
            return None
        return default if isinstance(default, str) else None

    @property
    def unreduced(self) -> LossCallable | None:
        """The same without combining; None where it cannot be told not to."""
        if self.reduction is None:
            return None
        if not isinstance(self.loss, nn.Module):
            return partial(self.loss, **{"reduction": "none"})
        module: Any = copy.copy(self.loss)
        module.reduction = "none"
        each: LossCallable = module
        return each

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        unreduced = self.unreduced
        if unreduced is None:
            return shared(*self.of_examples(logits, targets))
        targets = _in_kind(targets, logits)
        entries: Tensor = unreduced(logits, targets)
        if entries.shape[:1] != logits.shape[:1]:
            return shared(*self.of_examples(logits, targets))
        if self.reduction == "sum":
            return entries.flatten(1).sum(1) if entries.ndim > 1 else entries
        each = mean_of_each(entries)
        return each if self.reduction == "none" else shared(each, self.loss(logits, targets))

    def of_examples(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each example, and of all together."""
        targets = self._as_wanted(logits, targets)
        whole = _number("loss=", self.loss(logits, targets))
        if whole.ndim and whole.shape[0] == logits.shape[0]:
            each = mean_of_each(in_float32(whole))
            return each, each.mean()
        if whole.numel() != 1:
            raise ValueError(
                f"loss= gave shape {list(whole.shape)} for {logits.shape[0]} examples: one number is needed, or one "
                "for each example"
            )
        return in_float32(self._alone(logits, targets)), whole.reshape(())

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of all together."""
        whole = _number("loss=", self.loss(logits, self._as_wanted(logits, targets)))
        return whole.mean() if whole.ndim else whole

    def _alone(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example by itself."""
        rows = range(logits.shape[0])
        return torch.stack([self.loss(logits[i : i + 1], targets[i : i + 1]).reshape(()) for i in rows])

    def _as_wanted(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Targets as the loss takes them: torch's own in the kind and shape of the outputs, a function as the batch has
        them, as it may reshape the outputs itself.

        Where the two differ, [N] against [N, 1], one of them may broadcast to [N, N]. The loss of all is then no longer
        the mean of the losses of each, which tells the two apart on the first batch that can.
        """
        aligned = _in_kind(targets, logits)
        targets = targets.to(logits.dtype) if targets.is_floating_point() else targets
        if self.reduction is not None or (aligned.shape, aligned.dtype) == (targets.shape, targets.dtype):
            return aligned
        if "aligned" in self._wants:
            return aligned if self._wants["aligned"] else targets
        own, other = self._adds_up(logits, targets), self._adds_up(logits, aligned)
        if logits.shape[0] > 1 and own != other:
            self._wants["aligned"] = other
        return aligned if other and not own else targets

    def _adds_up(self, logits: Tensor, targets: Tensor) -> bool:
        """Whether the loss of all is the mean of the losses of each, for targets of this shape and kind."""
        try:
            with torch.no_grad():
                whole, rows = self.loss(logits, targets), logits.shape[0]
                each = whole if whole.ndim and whole.shape[0] == rows > 1 else self._alone(logits, targets)
                shape = targets.shape if whole.ndim > 1 else (rows,)
                fits = whole.numel() == 1 or (each is whole and whole.shape == shape)
                return fits and agrees(float(each.mean()), float(whole.mean()))
        except (RuntimeError, TypeError, ValueError, IndexError):  # a kind or shape that it does not take
            return False


def _is_plain_cross_entropy(loss: LossCallable) -> bool:
    if loss is F.cross_entropy:
        return True
    if type(loss) is not nn.CrossEntropyLoss:
        return False
    plain = loss.weight is None and loss.label_smoothing == 0 and loss.reduction == "mean"
    return plain and loss.ignore_index == IGNORE


def shared(each: Tensor, whole: Tensor) -> Tensor:
    """`each`, scaled so that their mean is `whole`, which a loss with weights or extra terms gives for all together.

    Where they cannot be scaled (a contrastive loss of one example alone is 0), all are `whole`. Where it is not finite
    because some of them are not, they stay as they are, so that it can be seen which.
    """
    whole = whole.to(each.dtype)
    factor = whole / each.mean()
    rounding = 1e-12 if each.dtype == torch.float64 else 1e-6
    stays = ((factor - 1).abs() < rounding) | (~whole.isfinite() & ~each.isfinite().all())
    scales = factor.isfinite() & (factor > 0)
    return torch.where(stays, each, torch.where(scales, each * torch.where(scales, factor, 1), whole))


def _number(what: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} gave a {type(value).__name__}, not a tensor: return the loss itself, not its .item()")
    return value


def _in_kind(targets: Tensor, logits: Tensor) -> Tensor:
    """Targets of entries in the logits' kind and shape: a loop writes `loss(model(x).squeeze(1), y.float())`."""
    if not same_entries(logits, targets):
        return targets
    return like_logits(targets, logits).to(logits.dtype)
