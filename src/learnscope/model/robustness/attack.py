"""FGSM and PGD: perturbations of bounded size that raise the loss, found by its gradient; and the text nearest to one.

Labels stay as they are, padding is never changed, and only the perturbation gets gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from learnscope.model.data import DataError
from learnscope.model.guard import guard
from learnscope.model.landscape.double_backward import extra_backward
from learnscope.model.outputs.activations import fused_activations
from learnscope.model.outputs.example_sums import ExampleSums, KeptOutputs, example_sums, example_sums_of_pass
from learnscope.model.robustness.target import Target, token_ids
from learnscope.model.robustness.token_noise import with_tokens
from learnscope.model.robustness.token_units import nearest_within
from learnscope.task import Outputs, Task
from learnscope.tensor.context import arithmetic_dtype
from learnscope.tensor.robustness.perturbation import (
    Ball,
    ascend,
    clipped,
    lengths,
    project,
    random_of_equal_norm,
    uniform,
)

Clip = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Attacked:
    """The result of an attack on a batch."""

    delta: Tensor
    zero_gradients: int
    """Entries among `gradients` that were exactly 0."""
    gradients: int
    """Entries of all gradients that may move and that a loss could depend on: not those of examples without a target,
    nor of tokens after the last one with a gradient, which no prediction of a causal model reads."""
    not_finite: int = 0
    """Losses of examples that were NaN on the way: such a point never counts as the worst."""
    outputs: Outputs | None = None
    """The model's outputs at the perturbation, where they were seen on the way."""


class Start(NamedTuple):
    """The gradient of the loss at the input itself, the mean loss of each example there, and the outputs."""

    gradient: Tensor
    losses: Tensor
    outputs: Outputs


def gradient_at_input(model: nn.Module, task: Task, target: Target) -> Start:
    """Where every attack begins: it is the same for all sizes, and need not be computed for each."""
    with attackable(model):
        return _gradient(model, task, target, _zeros(target))


def fgsm(
    model: nn.Module, task: Task, target: Target, ball: Ball, *, clip: Clip = None, start: Start | None = None
) -> Attacked:
    """The fast gradient sign method: one step of the whole radius from the input itself, within `clip`.

    δ = ε·sign(∇L) for L∞, ε·∇L/‖∇L‖ of each cell for L2; L is the sum of the task's losses. `start` is the gradient at
    the input where it is known.
    """
    _check_clip(target, clip)
    gradient, losses, _ = start or gradient_at_input(model, task, target)
    step = ascend(gradient, ball) * ball.radius.to(gradient.dtype)
    return Attacked(clipped(step, target.origin, clip), *_count_zeros(gradient, ball, losses))


def pgd(
    model: nn.Module, task: Task, target: Target, ball: Ball, *, steps: int = 10, restarts: int = 1,
    generator: torch.Generator | None = None, clip: Clip = None, step_size: float | None = None,
    start: Start | None = None,
) -> Attacked:  # fmt: skip
    """Projected gradient descent (arXiv 1706.06083): steps of α = 2.5 ε/steps, each projected back into the ball.

    The first start is the input itself: if the loss is nearly linear, steps from there end at FGSM's point, while
    steps from a random point end only near it, which would look like a weak attack. Every other start is drawn
    uniformly from the ball (without a generator it is the input again). Of all points after a step, each example keeps
    the one with its highest mean loss. `step_size` is α/ε, `start` the gradient at the input where it is known.
    """
    _check_clip(target, clip)
    best: Tensor | None = None
    seen: Outputs | None = None
    worst = _zeros(target)
    share = 2.5 / steps if step_size is None else step_size
    zeros = total = not_finite = 0
    with attackable(model):
        for number in range(restarts):
            delta = torch.zeros_like(worst)
            if number > 0 and generator is not None:
                delta = uniform(ball, worst, generator)
            delta = clipped(delta, target.origin, clip)
            for step in range(steps + 1):
                last = step == steps
                known = start if number == step == 0 else None
                gradient, losses, outputs = known or _gradient(model, task, target, delta, backward=not last)
                if step:
                    best = torch.full_like(losses, -torch.inf) if best is None else best
                    better = losses > best
                    best = torch.where(better, losses, best)
                    worst = torch.where(better.view(-1, *[1] * (worst.ndim - 1)), delta, worst)
                    seen = _outputs_at_best(seen, outputs, better)
                    not_finite += int(losses.isnan().sum())
                if not last:
                    count = _count_zeros(gradient, ball, losses)
                    zeros, total = zeros + count[0], total + count[1]
                    moved = delta + share * ball.radius.to(delta.dtype) * ascend(gradient, ball)
                    delta = clipped(project(moved, ball), target.origin, clip)
    # an example whose losses were all NaN has no worst point: its outputs are those at the input, which were not seen
    has_worst = best is not None and not bool(((best == -torch.inf) & (losses != -torch.inf)).any())
    return Attacked(worst, zeros, total, not_finite, seen if has_worst else None)


def _outputs_at_best(seen: Outputs | None, outputs: Outputs, better: Tensor) -> Outputs:
    """The outputs of each example where its loss was highest so far; no copy where all are new."""
    if seen is None or bool(better.all()):
        return outputs
    rows = better[outputs.example]
    assert seen.losses is not None
    assert outputs.losses is not None
    logits, losses = seen.logits.clone(), seen.losses.clone()
    logits[rows], losses[rows] = outputs.logits[rows], outputs.losses[rows]
    return replace(seen, logits=logits, losses=losses)


def random_perturbation(target: Target, ball: Ball, generator: torch.Generator, *, clip: Clip = None) -> Tensor:
    """A perturbation of the maximal size in a random direction: the baseline that an attack must beat."""
    _check_clip(target, clip)
    return clipped(random_of_equal_norm(ball, _zeros(target), generator), target.origin, clip)


@torch.no_grad()
def attacked_sums(
    model: nn.Module, task: Task, target: Target, delta: Tensor | None, reference: KeptOutputs | None = None
) -> ExampleSums:
    """Loss, accuracy and KL on the perturbed batch; KL is to `reference`, the outputs on the unperturbed batch."""
    with guard(model), fused_activations(model), target.added(delta) as batch:
        return example_sums(task.outputs(model, batch), task.size(batch), reference)


@contextmanager
def attackable(model: nn.Module) -> Iterator[None]:
    """The guarded model in eval mode with gradients for inputs only; its parameters are frozen meanwhile."""
    with (
        guard(model),
        fused_activations(model),
        torch.inference_mode(False),
        torch.enable_grad(),
        extra_backward(model),
    ):
        for p in model.parameters():
            if p.requires_grad:
                p.requires_grad_(False)  # the guard restores it; otherwise every activation would be kept for it
        yield


def _gradient(model: nn.Module, task: Task, target: Target, delta: Tensor, *, backward: bool = True) -> Start:
    """Gradient of the summed loss with respect to the perturbation; mean loss of each example, −∞ without a target."""
    delta = delta.detach().requires_grad_(backward)
    with torch.set_grad_enabled(backward), target.added(delta) as batch:
        out = task.outputs(model, batch)
        size = task.size(batch)
    assert out.losses is not None
    sums = torch.zeros(size, dtype=torch.float64, device=out.losses.device)
    sums.index_add_(0, out.example, out.losses.detach().double())
    positions = torch.bincount(out.example, minlength=size)
    means = torch.where(positions > 0, sums / positions, -torch.inf)
    outputs = replace(out, logits=out.logits.detach(), losses=out.losses.detach())
    # a loss that does not depend on the input has no gradient: it is zero everywhere, and counts as such
    if not (backward and out.losses.requires_grad):
        return Start(torch.zeros_like(delta), means, outputs)
    (gradient,) = torch.autograd.grad(out.losses.sum(), [delta], allow_unused=True, materialize_grads=True)
    return Start(gradient, means, outputs)


def _count_zeros(gradient: Tensor, ball: Ball, losses: Tensor) -> tuple[int, int]:
    """The number of entries that are 0, and of all entries; see `Attacked`."""
    has_target = losses != -torch.inf
    free = ball.free.expand(gradient.shape) & has_target.view(-1, *[1] * (gradient.ndim - 1))
    if ball.free.shape[2:] == (1,) and gradient.ndim == 3:  # tokens
        reached = (gradient != 0).any(-1)
        before = reached.flip(1).cumsum(1).flip(1) > 0
        # if an example has no gradient at all, all its entries count
        free = free & (before | ~reached.any(1, keepdim=True))[..., None]
    return int(((gradient == 0) & free).sum()), int(free.sum())


def _zeros(target: Target) -> Tensor:
    """Perturbations are kept in float32 or better: PGD's steps would be lost in half precision."""
    return torch.zeros_like(target.origin, dtype=arithmetic_dtype(target.origin))


def _check_clip(target: Target, clip: Clip) -> None:
    if clip is None:
        return
    if target.embedding is not None:
        raise ValueError(f"clip={clip!r}: embeddings have no range of valid values; clip is for continuous inputs")
    low, high = float(target.origin.min()), float(target.origin.max())
    if low < clip[0] or high > clip[1]:
        raise ValueError(
            f"clip={clip!r}: the inputs go from {low:g} to {high:g}, beyond the range that they are to stay in. "
            "Give the range of the inputs as the model gets them, after any normalisation"
        )


def changed_texts(
    model: nn.Module, task: Task, target: Target, delta: Tensor, ball: Ball, tokenizer: Any, vocabulary: Tensor,
    table: Tensor, most: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """For the first examples: the text (token ids without a tokenizer) before and after the attack, and both losses.

    Each attacked embedding becomes the token nearest to it, among those within ε of the original token (a sequence's ε
    is divided among its tokens as in the attack). The loss is that of the changed text with the original labels.
    """
    assert target.tokens is not None
    tokens, origin = target.tokens[:most], target.origin[:most]
    free, moved = target.free[:most, :, 0], delta[:most]
    radius = ball.radius[:most].expand(-1, tokens.shape[1], 1)
    if ball.lead == 1 and ball.norm == "l2":  # L∞ bounds each entry, for any cell
        of_tokens, of_sequence = lengths(moved, 2), lengths(moved, 1)
        radius = ball.radius[:most] * (of_tokens / torch.where(of_sequence > 0, of_sequence, 1))
    rows = nearest_within(origin[free], (origin.to(moved.dtype) + moved)[free], radius[..., 0][free], table, ball.norm)
    new = tokens.clone()
    new[free] = torch.where(rows >= 0, vocabulary.to(tokens)[rows.clamp(min=0)], tokens[free])
    part = task.take(target.batch, most)
    ids = token_ids(part, task)
    if ids is None or not torch.equal(ids, tokens):
        raise DataError(
            f"the token ids that {type(model).__name__} embeds are not those of the batch: an attacked text cannot "
            "be put in their place. Use texts=0"
        )
    before, after = (example_sums_of_pass(model, task, [batch]) for batch in (part, with_tokens(part, ids, new)))
    return [
        {
            "before": _text(tokens[n][real], tokenizer),
            "after": _text(new[n][real], tokenizer),
            "changed": int((tokens[n] != new[n]).sum()),
            "tokens": int(real.sum()),
            "loss_before": before.loss[n] / before.positions[n] if before.positions[n] else None,
            "loss_after": after.loss[n] / before.positions[n] if before.positions[n] else None,
        }
        for n, real in enumerate(free)
    ]


def _text(ids: Tensor, tokenizer: Any) -> Any:
    decode = getattr(tokenizer, "decode", None)
    return str(decode(ids.tolist())) if callable(decode) else ids.tolist()
