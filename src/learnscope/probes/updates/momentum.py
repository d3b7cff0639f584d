"""The optimizer's moments: the step they make, how noisy and how stale they are."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.core.stepped import NOT_STEPPED, stepped_groups
from learnscope.core.subject import Subject
from learnscope.probes.updates.remembered import Memory, Rule, reasons_of_scopes, remembered
from learnscope.quantities import Quantity
from learnscope.quantities.updates import Momentum as Q
from learnscope.record import Column, Label, Table
from learnscope.tensor.segments import Segments
from learnscope.tensor.updates import moments as sums
from learnscope.tensor.updates.moments import Remembered, moment_sums, signal_to_noise, weighted_median

RULES: tuple[Rule, ...] = ("adam", "momentum")
KINDS = ("model", "layer", "component", "group")
_OTHER: dict[Rule, Rule] = {"adam": "momentum", "momentum": "adam"}
_OTHERS: dict[Rule, str] = {"adam": "its moments are SGD's", "momentum": "its moments are Adam's"}
_NEVER = "no entry has had a gradient yet"


class Momentum(Probe):
    """Adam's and SGD's moments after the step, overall, per layer, component and optimizer group.

    m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ) with t the parameter's own count of steps (arXiv 1412.6980).
    Label `rule`: `adam` for Adam, AdamW and what inherits from them (the step is Adam's formula for these too);
    `momentum` for SGD, of which m̂ is the momentum buffer as it is, and which has only its norm and staleness.

    A scope in which no parameter has moments has null with the reason; so has one whose optimizer, of several, did not
    step. Sums are float64 throughout.
    """

    every: Schedule = 100
    sample_size: int = 1024
    """Entries of each tensor from which the median of `snr` is taken."""

    needs = frozenset({"optimizer"})
    reads_only = True
    cost = "one pass over the optimizer's moments, the gradients and the weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_size < 1:
            raise ValueError(f"Momentum(sample_size={self.sample_size!r}): at least one entry of each tensor")

    def measure(self, moment: Moment) -> list[Table]:
        subject = moment.subject
        subject.refresh()
        memory = remembered(moment)
        # without any moments, Adam's numbers are null with the reason
        rules = [rule for rule in RULES if rule in memory.by_rule] or ["adam"]
        count = len(subject.parameters)
        read = {rule: _read(memory.by_rule.get(rule, {}), self.sample_size, count) for rule in rules}
        tables = [_table(subject, kind, memory, read) for kind in KINDS]
        tables[-1] = _with_options(tables[-1], moment)
        return tables


class _Read(NamedTuple):
    """The numbers of one rule on the host: sums of each parameter, and signal-to-noise ratios of sampled entries."""

    table: Tensor
    ratios: Mapping[int, Tensor]

    def median(self, members: Sequence[int]) -> float | None:
        """Over the sampled entries of some parameters, each weighted by the entries that it stands for."""
        ratios = {position: self.ratios[position] for position in members if position in self.ratios}
        if not ratios:
            return None
        weights = [
            torch.full_like(r, float(self.table[p, sums.ENTRIES]) / max(r.numel(), 1)) for p, r in ratios.items()
        ]
        values, weight = torch.cat(list(ratios.values())), torch.cat(weights)
        counted = ~(values < 0)  # NaN included
        return weighted_median(values[counted], weight[counted])


def _read(items: Mapping[int, Remembered], size: int, count: int) -> _Read:
    """One wait for the device, whatever the number of parameters."""
    table = torch.zeros(count, sums.COLUMNS, dtype=torch.float64)
    if not items:
        return _Read(table, {})
    rows = [moment_sums(state) for state in items.values()]
    noisy = {position: state for position, state in items.items() if state.second is not None}
    ratios = [signal_to_noise(state, size, seed=position) for position, state in noisy.items()]
    parts = [*rows, *ratios]
    joined = torch.cat([part.to(rows[0].device) for part in parts]).cpu().split([part.numel() for part in parts])
    table[list(items)] = torch.stack(joined[: len(rows)])
    return _Read(table, dict(zip(noisy, joined[len(rows) :], strict=True)))


def _table(subject: Subject, kind: str, memory: Memory, read: Mapping[Rule, _Read]) -> Table:
    positions = range(len(subject.parameters))
    segments = subject.segments(kind, positions)
    unknown, bare = memory.unknown, memory.missing.keys() - memory.unknown
    counts = {Q.without_state: bare, Q.unknown_optimizer: unknown, Q.without_gradient: memory.no_gradient.keys()}
    columns: list[Column] = []
    for rule, numbers in read.items():
        missing = memory.missing | dict.fromkeys(memory.by_rule.get(_OTHER[rule], {}), _OTHERS[rule])
        reasons = reasons_of_scopes(segments, positions, missing)
        unmatched = reasons_of_scopes(segments, positions, missing | memory.no_gradient)
        columns += _columns(segments, rule, numbers, reasons, unmatched)
    columns += [
        quantity.column(segments.sum(torch.tensor([int(position in counted) for position in positions])))
        for quantity, counted in counts.items()
    ]
    return Table(kind, segments.scopes, columns)


def _columns(
    segments: Segments, rule: Rule, read: _Read, reasons: dict[int, str], unmatched: dict[int, str]
) -> list[Column]:
    total = segments.sum(read.table)
    labels: dict[str, Label] = {"rule": rule}
    first, noise, step, weight = (total[:, at] for at in (sums.FIRST, sums.NOISE, sums.STEP, sums.WEIGHT))
    lengths = total[:, sums.COMPARED] * total[:, sums.GRADIENT]
    cosine = (total[:, sums.INNER] / lengths.sqrt()).clamp(-1, 1)
    columns = [
        _column(Q.first_moment_norm, first.sqrt(), labels, reasons),
        _column(Q.staleness, cosine, labels, unmatched, _where(lengths == 0, "the moment or the gradient is 0")),
    ]
    if rule == "momentum":
        return columns
    medians = [read.median(members) for members in segments.members]
    never = _where((first == 0) & (noise == 0), _NEVER)
    return [
        *columns,
        _column(Q.second_moment_mean, total[:, sums.SECOND] / total[:, sums.ENTRIES], labels, reasons),
        _column(Q.effective_step_norm, step.sqrt(), labels, reasons),
        _column(Q.effective_step_max, segments.max(read.table[:, sums.LARGEST_STEP]), labels, reasons),
        _column(Q.step_to_weight, (step / weight).sqrt(), labels, reasons, _where(weight == 0, "all weights are 0")),
        _column(
            Q.snr, medians, {**labels, "summary": "median"}, reasons,
            {place: _NEVER for place, median in enumerate(medians) if median is None},
        ),
        _column(Q.snr, (first / noise).sqrt(), {**labels, "summary": "norm_ratio"}, reasons, never),
    ]  # fmt: skip


def _column(
    quantity: Quantity, values: Tensor | Sequence[float | None], labels: dict[str, Label], *reasons: dict[int, str]
) -> Column:
    """Null wherever there is a reason, the first of several."""
    status = dict(ChainMap(*reasons))
    plain = values.tolist() if isinstance(values, Tensor) else values
    return quantity.column([None if place in status else value for place, value in enumerate(plain)], labels, status)


def _where(holds: Tensor, reason: str) -> dict[int, str]:
    return dict.fromkeys(holds.nonzero().flatten().tolist(), reason)


def _with_options(table: Table, moment: Moment) -> Table:
    """The table of groups with what each was stepped with."""
    groups = dict(zip(moment.subject.scopes("group"), (options for _, options in stepped_groups(moment)), strict=True))
    idle = {place: NOT_STEPPED for place, scope in enumerate(table.scopes) if groups[scope] is None}
    shown = [groups[scope] or {} for scope in table.scopes]
    betas = [group.get("betas", (None, None)) for group in shown]
    none = {place: "this optimizer has no betas" for place, pair in enumerate(betas) if pair[0] is None} | idle
    columns = [
        Q.lr.column([group.get("lr") for group in shown], status=idle),
        Q.beta1.column([pair[0] for pair in betas], status=none),
        Q.beta2.column([pair[1] for pair in betas], status=none),
    ]
    return Table(table.kind, table.scopes, [*columns, *table.columns])
