"""AutoAttack on a classifier of images, through the package `pyautoattack`, attack by attack.

F. Croce, M. Hein, *Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks*,
ICML 2020: APGD on the cross entropy, targeted APGD on the difference of logits ratio, targeted FAB, and Square, which
needs no gradient.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.data import is_per_example
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.model.robustness.target import Target
from learnscope.task import Task
from learnscope.task.batches import map_leaves
from learnscope.tensor.robustness.perturbation import Norm

MISSING = "pyautoattack is not installed: pip install 'learnscope[autoattack]'"
GRADIENT = ("apgd-ce", "apgd-t", "fab-t")
FREE = "square"
BATCH = 64
DLR_CLASSES = 4
"""Classes that the difference of logits ratio of targeted APGD needs."""


class CannotAttack(ValueError):
    """A model, data or machine that AutoAttack is not for; the message says why, and what helps."""


def check_installed() -> None:
    if find_spec("pyautoattack") is None:
        raise CannotAttack(MISSING)


class Images:
    """The images of some batches with their answers, and the model as a function of images between 0 and 1."""

    def __init__(self, model: nn.Module, task: Task, targets: Sequence[Target], clip: Sequence[float] | None) -> None:
        check_installed()
        first = targets[0]
        if first.leaf is None or first.origin.ndim != 4:
            shape = "token ids" if first.leaf is None else f"inputs of shape {list(first.origin.shape[1:])}"
            raise CannotAttack(f"AutoAttack is for images of shape [channels, height, width], and these are {shape}")
        if any(target.origin.shape[1:] != first.origin.shape[1:] for target in targets):
            raise CannotAttack("AutoAttack needs images of one size")
        answers = [task.targets(target.batch) for target in targets]
        if any(each is None or each.is_floating_point() or each.ndim != 1 for each in answers):
            raise CannotAttack("AutoAttack is for classifiers with one answer for each image")
        self.model, self.task, self.like, self.device = model, task, first, model_device(model)
        inputs = torch.cat([target.origin.detach() for target in targets])
        self.low, self.high = _range(inputs, clip)
        self.x = ((inputs.float() - self.low) / (self.high - self.low)).clamp(0, 1)
        self.y = torch.cat([each for each in answers if each is not None]).long()

    @property
    def span(self) -> float:
        return self.high - self.low

    def logits(self, x: Tensor) -> Tensor:
        """Of as many images as there are; what else a batch holds, such as answers, does not matter for them."""
        leaf, size, batch = self.like.leaf, self.task.size(self.like.batch), self.like.batch
        inputs = (self.low + self.span * x).to(self.like.origin.dtype)

        def exchanged(each: Any) -> Any:
            if each is leaf:
                return inputs
            return each[:1].expand(len(x), *each.shape[1:]) if is_per_example(each, size) else each

        return self.task.positions(self.model, map_leaves(batch, exchanged)).logits.float()


def _range(inputs: Tensor, clip: Sequence[float] | None) -> tuple[float, float]:
    """The lowest and the highest valid input: as given, or 0 and 1 where all inputs are between."""
    low, high = (0.0, 1.0) if clip is None else (float(clip[0]), float(clip[1]))
    least, most = float(inputs.min()), float(inputs.max())
    if least < low or most > high:
        raise CannotAttack(
            f"inputs go from {least:.3g} to {most:.3g}, and AutoAttack keeps them in the range of valid images: give "
            f"it, clip=(lowest, highest)" + ("" if clip is None else f"; {low:g} to {high:g} is too narrow")
        )
    return low, high


class _Classifier(nn.Module):
    """The package calls a module with images between 0 and 1."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        self.images = [images]  # in a list: the model is no submodule, which modes could be set of

    def forward(self, x: Tensor) -> Tensor:
        return self.images[0].logits(x)


def right_answers(images: Images) -> list[int]:
    """1 for each image that the model gets right."""
    with torch.no_grad(), guard(images.model):
        parts = [images.logits(part).argmax(1) for part in images.x.split(BATCH)]
    return (torch.cat(parts) == images.y).int().tolist()


def auto_attacked(
    images: Images, norm: Norm, epsilon: float, *, seed: int, queries: int, only: Sequence[str] | None = None
) -> dict[str, Any]:
    """By attack, 1 for each image that stays right; `left_out`, by attack, why it was not run; `said`, the package's
    own warnings. ε is in the units of the inputs. Every attack is run by itself, on all images."""
    from pyautoattack import AutoAttack

    right, left_out = dict[str, list[int]](), dict[str, str]()
    with guard(images.model), _listening() as said, torch.enable_grad():
        classes = int(images.logits(images.x[:1]).shape[1])
        names = {"linf": "Linf", "l2": "L2"}
        attack = AutoAttack(
            _Classifier(images), norm=names[norm], eps=epsilon / images.span, seed=seed, device=images.device
        )
        attack.fab.n_target_classes = attack.apgd_targeted.n_target_classes = max(1, min(9, classes - 1))
        attack.square.n_queries = queries
        chosen = list(only or attack.attacks_to_run)
        if classes < DLR_CLASSES and "apgd-t" in chosen:
            chosen.remove("apgd-t")
            left_out["apgd-t"] = f"targeted APGD needs {DLR_CLASSES} classes, and there are {classes}"
        attack.attacks_to_run = chosen
        made = attack.run_standard_evaluation_individual(images.x, images.y, batch_size=BATCH)
        for name, (changed, _) in made.items():
            with torch.no_grad():
                answers = torch.cat([images.logits(part).argmax(1) for part in changed.split(BATCH)])
            right[name] = (answers == images.y).int().tolist()
    return {"right": right, "left_out": left_out, "said": list(dict.fromkeys(said))}


@contextmanager
def _listening() -> Iterator[list[str]]:
    """What the package warns of; a debugger's trace, which one of its checks takes away, is put back."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage().split(" See ")[0])

    logger, handler, trace = logging.getLogger("auto-attack"), Kept(logging.WARNING), sys.gettrace()
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
        sys.settrace(trace)
