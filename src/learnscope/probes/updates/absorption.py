"""How much of an update, and of its weight decay, is lost to rounding, from a sample of entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from learnscope.core.moment import Moment
from learnscope.core.stepped import stepped_gradient
from learnscope.core.subject import Subject
from learnscope.probes.updates.remembered import Holder, holders, reasons_of_scopes
from learnscope.quantities import Quantity
from learnscope.quantities.updates import ParameterChange as Q
from learnscope.record import Column, Table
from learnscope.tensor.segments import Segments
from learnscope.tensor.updates.fold import bits_differ
from learnscope.tensor.updates.moments import (
    KNOWN,
    Rounding,
    decay_rounding,
    decay_vanishes,
    decoupled,
    fixed_entries,
    planned_update,
)

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""

ROUNDINGS: tuple[Rounding, ...] = ("apart", "together")
SHARE = (Q.absorbed_share, Q.absorbed_share_low, Q.absorbed_share_high)
DECAY_SHARE = (Q.decay_absorbed_share, Q.decay_absorbed_share_low, Q.decay_absorbed_share_high)


@dataclass(frozen=True, slots=True)
class Sample:
    """Some entries of one parameter before the step."""

    position: int
    entries: Tensor
    before: Tensor


@dataclass(slots=True)
class Question:
    """A yes-or-no question about the sampled entries of parameters, by position."""

    answers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """How many entries say yes, and of how many it was asked."""
    missing: dict[int, str] = field(default_factory=dict)
    """Why it has no answer."""

    def ask(self, position: int, yes: Tensor, of: Tensor) -> None:
        self.answers[position] = (yes & of).sum().double(), of.sum().double()


Questions = dict[str, Question]
"""About the whole update, and about its weight decay by how that is rounded."""


def take_sample(subject: Subject, size: int, *, half_only: bool) -> list[Sample]:
    """At most `size` entries of every trainable (half-precision) parameter, the same ones at every call."""
    samples = []
    for position, p in enumerate(subject.parameters):
        if p.requires_grad and p.is_floating_point() and p.numel() and (p.element_size() == 2 or not half_only):
            entries = fixed_entries(p.numel(), size, position, p.device)
            samples.append(Sample(position, entries, torch.take(p.detach(), entries)))
    return samples


def absorbed_tables(moment: Moment, samples: Sequence[Sample]) -> list[Table]:
    """What was lost to rounding of the last step, of the model and of each layer."""
    holder_of, parameters = holders(moment), moment.subject.parameters
    gradients = {sample.position: stepped_gradient(moment, sample.position) for sample in samples}
    updated = [s for s in samples if id(parameters[s.position]) in holder_of and gradients[s.position] is not None]
    if not updated:
        columns = [quantity.cells(["no parameter was updated"]) for quantity in (SHARE[0], DECAY_SHARE[0])]
        return [Table("model", ["model"], columns)]
    questions: Questions = {key: Question() for key in ("update", *ROUNDINGS)}
    for sample in updated:
        p, gradient = parameters[sample.position], gradients[sample.position]
        assert gradient is not None
        reason = _stepped_more(moment, holder_of[id(p)][0])
        _examine(holder_of[id(p)], p, gradient, sample, questions, reason)
    return [_table(moment.subject, kind, updated, questions) for kind in ("model", "layer")]


def _examine(
    holder: Holder, p: Tensor, whole_gradient: Tensor, sample: Sample, questions: Questions, reason: str | None
) -> None:
    optimizer, group = holder
    name, position = type(optimizer).__name__, sample.position
    reason = reason or _not_known(optimizer, group, p)
    if reason is not None:
        for question in questions.values():
            question.missing[position] = reason
        return
    gradient = _pick(whole_gradient, sample.entries)
    state = {
        key: _pick(value, sample.entries) if value.shape == p.shape else value
        for key, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
    }
    before = sample.before
    unchanged = ~bits_differ(_pick(p.detach(), sample.entries), before)
    update = planned_update(name, group, state, before, gradient)
    # a weight that is NaN or infinite stays so whatever is added: that is no rounding
    questions["update"].ask(position, (update != 0) & unchanged & before.isfinite(), torch.ones_like(unchanged))
    reason, rounding = _no_decay(name, group), decay_rounding(group)
    how = "apart from" if rounding == "apart" else "together with"
    for key in ROUNDINGS:
        if reason is not None or key != rounding:
            questions[key].missing[position] = reason or f"its weight decay is rounded {how} the update"
    if reason is None:
        # rounded together with the update, decay is lost only where nothing of the update was left
        lost = unchanged if rounding == "together" else decay_vanishes(name, group, before, gradient)
        questions[rounding].ask(position, lost, (before != 0) & before.isfinite())


def _stepped_more(moment: Moment, optimizer: Optimizer) -> str | None:
    """Why the change since the sample is not that of one step; None if it is."""
    stepped = moment.handed.stepped
    times = 1 if stepped is None else stepped.times.get(id(optimizer), 1)
    return f"its optimizer stepped {times} times in this training step" if times > 1 else None


def _pick(tensor: Tensor, entries: Tensor) -> Tensor:
    return torch.take(tensor.to_dense() if tensor.is_sparse else tensor, entries)


def _no_decay(name: str, group: Mapping[str, Any]) -> str | None:
    """Why there is no decay that rounding could take; None if there is."""
    on_weights = decoupled(name, group)
    if not group.get("weight_decay"):
        return "no weight decay"
    if on_weights and not group["lr"]:
        return "the learning rate is 0, and so is the decay"
    if decay_rounding(group) == "together" and not on_weights:
        return f"a fused {name} adds the decay to the gradient within its kernel, where it is not rounded apart"
    return None


def _not_known(optimizer: Optimizer, group: Mapping[str, Any], p: Tensor) -> str | None:
    name = type(optimizer).__name__
    if name not in KNOWN:
        return f"the update of {name} is not known"
    if (name != "SGD" or group.get("momentum")) and not optimizer.state.get(p):
        return f"{name} has no state of it"
    if name == "SGD" and group.get("fused") and p.element_size() == 2 and p.device.type == "cpu":
        # torch 2.13 and before leave every full vector of such a weight as it was
        return "fused SGD on a CPU is not sure to write half-precision weights"
    return None


def _table(subject: Subject, kind: str, updated: Sequence[Sample], questions: Questions) -> Table:
    positions = [sample.position for sample in updated]
    sampled = torch.tensor([sample.entries.numel() for sample in updated], dtype=torch.float64)
    entries = torch.tensor([float(subject.parameters[i].numel()) for i in positions], dtype=torch.float64)
    segments = subject.segments(kind, positions)
    answered = torch.tensor([float(i in questions["update"].answers) for i in positions], dtype=torch.float64)

    def columns(share: Sequence[Quantity], question: Question, labels: dict[str, str]) -> list[Column]:
        """The share and both ends of its interval."""
        reasons = reasons_of_scopes(segments, positions, question.missing)
        values = _stratified(segments, positions, question, sampled, entries)
        for place in values[0].isnan().nonzero().flatten().tolist():
            reasons.setdefault(place, "no weight other than 0 to decay")
        return [quantity.column(v, labels, reasons) for quantity, v in zip(share, values, strict=True)]

    result = columns(SHARE, questions["update"], {})
    result.append(Q.absorbed_coverage.column(segments.sum(entries * answered) / segments.sum(entries)))
    measured = [rounding for rounding in ROUNDINGS if questions[rounding].answers]
    if not measured:
        result += columns(DECAY_SHARE, questions["apart"], {})[:1]
    for rounding in measured:
        result += columns(DECAY_SHARE, questions[rounding], {"rounding": rounding})
    return Table(kind, segments.scopes, result)


def _stratified(
    segments: Segments, positions: Sequence[int], question: Question, sampled: Tensor, entries: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Share of each scope with its 95 % interval.

    Parameters are strata of unequal size: shares are weighted by the entries they stand for, and the interval
    follows from the variance of a stratified proportion (with two successes and two failures added, Agresti and
    Coull 1998); a parameter whose entries were all sampled adds none.
    """
    table = torch.zeros(len(positions), 2, dtype=torch.float64)
    if question.answers:
        places = [place for place, position in enumerate(positions) if position in question.answers]
        device = next(iter(question.answers.values()))[0].device  # one wait for it, for all parameters
        numbers = [number.to(device) for place in places for number in question.answers[positions[place]]]
        table[places] = torch.stack(numbers).cpu().view(-1, 2)
    yes, asked = table.unbind(1)
    weight = entries * asked / sampled
    likely = (yes + 2) / (asked + 4)
    variance = torch.where(sampled == entries, 0.0, likely * (1 - likely) / (asked + 4))
    total = segments.sum(weight)
    mean = segments.sum(weight * yes / asked.clamp(min=1)) / total
    half = Z95 * segments.sum(weight.square() * variance).sqrt() / total
    return mean, (mean - half).clamp(min=0), (mean + half).clamp(max=1)
