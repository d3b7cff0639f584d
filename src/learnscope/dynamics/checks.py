"""What the user said of model and data, against what they are: device, number of classes, labels that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learnscope.model.data import InOrder
from learnscope.model.examples.scores import check_classes
from learnscope.model.outputs.evaluate import model_device
from learnscope.probes.examples.ledger_writer import check_num_classes
from learnscope.task import IGNORE, Task
from learnscope.task.batches import first_tensor
from learnscope.task.shapes import flatten_positions, is_single

if TYPE_CHECKING:
    import pandas as pd


def check_device(model: nn.Module, device: Any) -> None:
    """Refuse a device that is not the model's: inputs go where the model is, and nothing else is moved."""
    if device is None:
        return
    expected, actual = torch.device(device), model_device(model)
    if expected.type != actual.type or expected.index not in (None, actual.index or 0):
        raise ValueError(f"device={str(expected)!r}, but the model is on {actual}: move the model, or leave device out")


class CheckedTargets(InOrder):
    """Batches in order; a target beyond `num_classes` is refused."""

    def __init__(self, data: Any, split: str, task: Task, num_classes: int | None) -> None:
        super().__init__(data)
        self.split, self.task, self.num_classes = split, task, num_classes

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(super().__iter__()):
            targets = self.task.targets(batch)
            if self.num_classes is not None and targets is not None and not targets.is_floating_point():
                beyond = targets[(targets != IGNORE) & ((targets < 0) | (targets >= self.num_classes))]
                if len(beyond):
                    raise ValueError(
                        f"num_classes={self.num_classes}, but batch {number} of the {self.split} data has target "
                        f"{int(beyond[0])}: classes are counted from 0"
                    )
            yield batch


def known_noise(frame: pd.DataFrame, true_noise: Any) -> NDArray[np.bool_]:
    """For each row of a table of labels whether it is known to be wrong.

    `true_noise` is a mask over the examples in the order of the data, or the ids of those that are wrong (where the
    batches carry no ids: their numbers in that order).
    """
    noise = true_noise.detach().cpu().numpy() if isinstance(true_noise, torch.Tensor) else np.asarray(true_noise)
    example = frame["example"].to_numpy(np.int64)
    examples = int(example.max()) + 1
    if noise.ndim == 1 and noise.dtype == bool:
        if len(noise) != examples:
            raise ValueError(f"true_noise is a mask over {len(noise):,} examples, and the data have {examples:,}")
        mask: NDArray[np.bool_] = noise[example]
        return mask
    if noise.ndim != 1 or not (np.issubdtype(noise.dtype, np.integer) or not len(noise)):
        raise TypeError("true_noise is a mask of True and False over the examples, or a list of their ids")
    if len(noise) == examples > 2 and np.isin(noise, [0, 1]).all():
        raise TypeError("true_noise looks like a mask in numbers: make it one of True and False, astype(bool)")
    ids = frame["id" if "id" in frame else "example"].to_numpy(np.int64)
    unknown = noise[~np.isin(noise, ids)]
    if len(unknown):
        raise ValueError(f"true_noise has {len(unknown):,} ids that the training data lack, first {unknown[0]}")
    return np.isin(ids, noise)


def check_targets(num_classes: int | None, logits: Tensor, targets: Tensor) -> None:
    """Refuse targets that are no classes, or not as many as `num_classes` says."""
    check_classes(logits, targets)
    if num_classes is None or not targets.numel():
        return
    check_num_classes(num_classes, int(targets.max()))
    flat = flatten_positions(logits[:1], targets[:1], None)[0]  # classes last, also those of images
    width = 2 if is_single(flat) else flat.shape[-1]
    if width < num_classes:
        raise ValueError(
            f"num_classes={num_classes}, but there are {width} logits: say how many there are, or leave it out"
        )


def needs_no_task(inputs: Any, logits: Any) -> bool:
    """Whether logits and targets can be used as they are, without a task to read the batch."""
    if not isinstance(logits, Tensor):
        return False
    if isinstance(inputs, Tensor):
        return inputs.is_floating_point()
    return logits.ndim <= 2 and first_tensor(inputs) is None
