"""Mean and variance of the entries of gradients, by scope."""

from __future__ import annotations

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.moment import Moment
from learnscope.tensor.gradients.spread import gradient_spread


def spread(moment: Moment, gradients: Gradients, kind: str) -> Tensor:
    """Mean and unbiased variance of g over the entries of each scope of a kind, `[2, scopes]`.

    A pass of its own over the gradients: before a clip if there is one, which may round small entries to 0. The loss
    scale is divided out again.
    """
    mean, centred = moment.once("gradient_spread", lambda: _unscaled_spread(gradients))
    entries = mean.new_tensor([moment.subject.parameters[i].numel() for i in gradients.positions])
    return torch.stack(moment.subject.segments(kind, gradients.positions).spread(entries, mean, centred))


def _unscaled_spread(gradients: Gradients) -> tuple[Tensor, Tensor]:
    mean, centred = gradient_spread(gradients.tensors) if gradients.spread is None else gradients.spread
    factor = 1 / torch.as_tensor(gradients.scale, dtype=torch.float64, device=mean.device)
    return mean * factor, centred * factor.square()
