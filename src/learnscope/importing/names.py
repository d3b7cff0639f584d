"""Which foreign names mean what: the names that trainers, loggers and loops give to what learnscope declares.

A name is compared without case and with `_` for every other sign: `train/loss`, `Train Loss` and `train_loss` are one.
Of several names for one quantity the first in the list is taken; the others keep their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from learnscope.quantities import Quantity
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.quantities.updates import LearningRate
from learnscope.record import Label

GROUP = "group_0"
"""What a session calls the only group of an optimizer."""
_HELD_OUT = ("eval", "val", "valid", "validation", "evaluation", "dev", "holdout", "held_out", "test")
"""Data that is not trained on, the most usual first; `test` last, since it is often evaluated once."""
_ACCURACIES = ("accuracy", "acc", "top1", "acc1", "top1_acc", "top1_accuracy", "accuracy_top_1", "categorical_accuracy")


@dataclass(frozen=True)
class Target:
    """Where the values of a foreign name go: a declared quantity, with what is known of it."""

    quantity: Quantity
    labels: Mapping[str, Label] = field(default_factory=dict)
    kind: str = "model"
    scope: str = "model"

    @property
    def place(self) -> tuple[str, str, str]:
        """What only one foreign name can have."""
        return self.quantity.probe, self.quantity.name, self.scope

    def __str__(self) -> str:
        labels = "".join(f" ({label}={value})" for label, value in self.labels.items())
        of = f" of {self.scope}" if self.kind == "group" else ""
        return f"{self.quantity.probe}.{self.quantity.name}{labels}{of}"


def plain(name: str) -> str:
    """
    >>> plain("Train/Loss"), plain("val acc@1")
    ('train_loss', 'val_acc_1')
    """
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _held_out(*ends: str) -> list[str]:
    return [name for first in _HELD_OUT for end in ends for name in (f"{first}_{end}", f"{first}_{end}_epoch")]


LOSS = Target(Loss.loss)
ACCURACY = Target(Loss.accuracy)
HOLDOUT_LOSS = Target(Holdout.holdout_loss)
HOLDOUT_ACCURACY = Target(Holdout.holdout_accuracy)
RATE = Target(LearningRate.learning_rate, kind="group", scope=GROUP)
GRADIENT = Target(GradientFlow.norm, {"stage": "before_clip"})

RULES: Sequence[tuple[Target, Sequence[str]]] = (
    (LOSS, (
        "loss", "train_loss_step", "train_loss", "training_loss", "loss_train", "loss_training", "train_batch_loss",
        "batch_loss", "loss_step", "train_loss_epoch", "train_epoch_loss", "epoch_loss", "loss_epoch",
    )),
    (HOLDOUT_LOSS, (*_held_out("loss"), *(f"loss_{first}" for first in _HELD_OUT), *_held_out("epoch_loss"))),
    (ACCURACY, (
        "train_accuracy_step", "train_accuracy", "train_acc_step", "train_acc", "training_accuracy", "accuracy", "acc",
        "accuracy_train", "acc_train", "train_accuracy_epoch", "train_acc_epoch", "train_epoch_accuracy",
    )),
    (HOLDOUT_ACCURACY, (
        *_held_out(*_ACCURACIES), *(f"{kind}_{first}" for first in _HELD_OUT for kind in ("accuracy", "acc")),
        *_held_out("epoch_accuracy"),
    )),
    (RATE, ("learning_rate", "lr", "train_learning_rate", "train_lr", "optim_lr", "learningrate")),
    (GRADIENT, (
        "grad_norm", "train_grad_norm", "gradient_norm", "train_gradient_norm", "total_grad_norm", "global_grad_norm",
        "grad_norm_total", "gradnorm", "grad_2_0_norm_total",
    )),
    *((Target(Loss.logged.at(key=key)), (f"train_{key}", f"rollout_{key}")) for key in (
        "reward", "rewards", "mean_reward", "episode_reward", "episodic_return", "ep_rew_mean",
    )),
)  # fmt: skip
"""A norm that a loop logs is what `clip_grad_norm_` returned, which is that before the clip."""

GROUPS = re.compile(r"(?:train/)?(?:lr|learning_rate)(?:-[A-Za-z]\w*(?:-\d+)?(?:/[\w.-]+)?|[-_/](?:pg|group)?_?\d+)")
"""Learning rates of several groups: Lightning's `lr-AdamW/pg1`, Ultralytics' `lr/pg0`, `lr_1`."""
NOT_A_RATE = ("-momentum", "-weight_decay")
"""What Lightning writes beside a rate, with these at the end."""

EPOCHS = ("epoch", "train_epoch", "current_epoch", "trainer_epoch")
STEPS = ("step", "global_step", "trainer_global_step", "train_global_step", "iteration", "iter", "steps", "_step")
"""As `plain` gives them, but for the last."""
TIMES = ("wall_time", "timestamp", "_timestamp", "created_at", "time", "datetime")


def first_of(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The first of `names` that is called like the first of `wanted` that any is called."""
    by_plain: dict[str, str] = {}
    for name in names:
        by_plain.setdefault(plain(name), name)
        by_plain.setdefault(name, name)
    return next((by_plain[each] for each in wanted if each in by_plain), None)
