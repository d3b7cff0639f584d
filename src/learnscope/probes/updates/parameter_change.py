"""How far and how densely the weights have moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.model.weights.rounded import RoundedWeights, as_they_were, precision_note
from learnscope.model.weights.snapshot import Snapshot
from learnscope.probes.updates.absorption import absorbed_tables, take_sample
from learnscope.quantities.updates import ParameterChange as Q
from learnscope.record import Label, Measurement, Table
from learnscope.tensor.segments import JointSegments
from learnscope.tensor.updates.delta import DeltaTable, compared_and_renewed, delta_statistics


class ParameterChange(Probe):
    """Δ = W_now − W_at the last measurement, per tensor, layer, component, optimizer group, and overall.

    The record's note `span` holds the two steps between which Δ lies. Sums are float64 throughout.
    """

    every: Schedule = 100
    thresholds: Sequence[float] = (1e-8, 1e-6, 1e-4)
    per_tensor: bool = True
    snapshot_device: str = "cpu"
    """Where the previous weights are kept: a torch device, or "disk"."""
    snapshot_dtype: str = "native"
    """Their dtype: each weight's own, or a float dtype. In a narrower one, a weight that still rounds to its copy
    counts as unchanged, and the record's note `precision` says how precisely the other changes are known."""
    absorbed: bool | None = None
    """Measure what rounding absorbs; None: of half-precision weights only, where it matters."""
    sample_size: int = 1024
    """Entries of each tensor on which absorption is measured."""

    needs = frozenset({"previous"})
    reads_only = True
    cost = "one pass over the weights and a copy of them as they were, which is then brought up to date"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not t >= 0 for t in self.thresholds):
            raise ValueError(f"ParameterChange(thresholds={self.thresholds!r}): thresholds are numbers from 0 on")

    def prepare(self, moment: Moment) -> None:
        if moment.optimizers and self.absorbed is not False:
            samples = take_sample(moment.subject, self.sample_size, half_only=self.absorbed is None)
            if samples:
                moment.state["_sample"] = samples

    def measure(self, moment: Moment) -> Measurement:
        before, subject = moment.previous, moment.subject
        since = before.step
        # a class of the user's own may still read the previous weights
        delta = changes(moment, self.thresholds, renew=type(self) is ParameterChange)
        kinds = ["model", "layer", "component", *subject.group_kinds, *(["tensor"] if self.per_tensor else [])]
        scopes = subject.joint_segments(kinds, delta.positions)
        samples = moment.state.pop("_sample", None)
        absorbed = [] if samples is None else absorbed_tables(moment, samples)
        return Measurement(
            absorbed,
            notes={"span": [since, moment.step], **precision_note(before, subject.by_name())},
            packed={"squares": delta.table.sum_squares},
            unpack=lambda _numbers: change_tables(scopes, delta, self.thresholds, self.snapshot_dtype),
        )


@dataclass(frozen=True)
class Changes:
    """What changed since the previous weights, per floating-point parameter."""

    names: Sequence[str]
    positions: Sequence[int]
    """Of these parameters among the subject's."""
    thresholds: tuple[float, ...]
    table: DeltaTable
    dtype: str
    """Of the weights, or "mixed"."""
    renewed: bool = False
    """Whether the older weights are the newer ones now."""

    @classmethod
    def between(
        cls, new: Mapping[str, Tensor], old: Mapping[str, Tensor], thresholds: Sequence[float],
        positions: Sequence[int], *, renew: bool = False,
    ) -> Changes:  # fmt: skip
        """From two sets of weights with the same names; with `renew` the older ones may become the newer on the way."""
        dtypes = [str(dtype).removeprefix("torch.") for dtype in {tensor.dtype for tensor in new.values()}]
        dtype, renewed = dtypes[0] if len(dtypes) == 1 else "mixed", None
        if isinstance(old, RoundedWeights):
            table = _one_by_one(new, old, thresholds)
        else:
            now, then = list(new.values()), [old[name] for name in new]
            renewed = compared_and_renewed(now, then, thresholds) if renew else None
            table = delta_statistics(now, then, thresholds) if renewed is None else renewed
        return cls(list(new), positions, tuple(thresholds), table, dtype, renewed is not None)

    def within(self, thresholds: Sequence[float]) -> Tensor:
        """[tensors, thresholds]: entries with |Δ| ≤ t."""
        if tuple(thresholds) == self.thresholds:
            return self.table.within
        return self.table.within[:, [self.thresholds.index(t) for t in thresholds]]


def changes(moment: Moment, thresholds: Sequence[float], *, renew: bool = False) -> Changes:
    """The change since `moment.previous`, computed once unless a later probe has other thresholds.

    With `renew` the previous weights may become those of now on the way, if nobody reads them any more.
    """
    before = moment.previous
    computed: list[Changes] = moment.once(("changes", id(before)), list)
    for earlier in computed:
        if set(thresholds) <= set(earlier.thresholds):
            return earlier
    subject = moment.subject
    subject.refresh()
    before.check(subject.by_name())
    positions = [i for i, p in enumerate(subject.parameters) if p.is_floating_point()]
    floats = {subject.names[i]: subject.parameters[i] for i in positions}
    renew = renew and isinstance(before, Snapshot) and before.may_be_renewed  # others show a snapshot's weights
    computed.append(Changes.between(floats, as_they_were(before, floats), thresholds, positions, renew=renew))
    if computed[-1].renewed:
        before.has_been_renewed(moment.step)
    return computed[-1]


def _one_by_one(new: Mapping[str, Tensor], old: RoundedWeights, thresholds: Sequence[float]) -> DeltaTable:
    """Statistics of each tensor on its own, so that only one of the older weights is in memory in full precision."""
    tables = [delta_statistics([tensor.detach()], [old[name]], thresholds) for name, tensor in new.items()]
    columns = {field.name: torch.cat([getattr(table, field.name) for table in tables]) for field in fields(DeltaTable)}
    # the bits that a weight had are not known: only those it was rounded to
    known = torch.tensor([name not in old.rounded for name in new], dtype=torch.bool, device="cpu")
    return DeltaTable(**{**columns, "bits_changed": columns["bits_changed"].where(known, torch.nan)})


MEASURED = (
    Q.l1, Q.l2, Q.max, Q.mean, Q.mean_abs, Q.std, Q.update_to_weight, Q.sign_flip_share, Q.visible_share, Q.nan, Q.inf
)  # fmt: skip


def change_tables(kinds: JointSegments, delta: Changes, thresholds: Sequence[float], old_dtype: str) -> list[Table]:
    """The statistics of Δ over the scopes of each kind; `old_dtype` is that of the previous weights."""
    numbers, largest = _stacked(delta, thresholds), delta.table.largest.numpy()
    narrower = f"weights kept as {old_dtype} cannot be compared bit by bit"
    labels: list[dict[str, Label]] = [{"threshold": threshold, "dtype": delta.dtype} for threshold in thresholds]
    # of all kinds together: a call costs more than its numbers
    sums, highest = kinds.joined.sums(numbers), kinds.joined.largest(largest)
    n, total, l1, squares, old, flips, bits, nan, inf, centred, explained = sums[:, :11].T
    with np.errstate(divide="ignore", invalid="ignore"):
        measured = (
            l1, np.sqrt(squares), highest, total / n, l1 / n, unbiased_std(n, total, centred, explained),
            np.sqrt(squares / old), flips / n, bits / n, nan, inf,
        )  # fmt: skip
        shares = (sums[:, 11:] / n[:, None]).T.tolist()
    listed = [(quantity, values.tolist()) for quantity, values in zip(MEASURED, measured, strict=True)]
    unknown, tables = np.isnan(bits).tolist(), []
    for kind, segments in kinds.kinds.items():
        own = kinds.slices[kind]
        columns = [quantity.column(values[own]) for quantity, values in listed]
        if any(unknown[own]):
            reasons = {place: narrower for place, lost in enumerate(unknown[own]) if lost}
            place = MEASURED.index(Q.visible_share)
            columns[place] = Q.visible_share.column(columns[place].values, status=reasons)
        columns += [Q.sparsity.column(share[own], label) for share, label in zip(shares, labels, strict=True)]
        tables.append(Table(kind, segments.scopes, columns))
    return tables


def _stacked(delta: Changes, thresholds: Sequence[float]) -> NDArray[np.float64]:
    """One row for each tensor: a scope is a single sum over rows."""
    table = delta.table
    columns = (
        table.entries, table.total, table.l1, table.sum_squares, table.old_sum_squares, table.sign_flips,
        table.bits_changed, table.nan, table.inf, table.centred_squares,
    )  # fmt: skip
    stacked = np.empty((len(table.entries), len(columns) + 1 + len(thresholds)))
    for place, column in enumerate(columns):
        stacked[:, place] = column.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # of an empty tensor
        stacked[:, 10] = stacked[:, 1] ** 2 / stacked[:, 0]
    stacked[:, 11:] = delta.within(thresholds).numpy()
    return stacked


Numbers = NDArray[np.float64]


def unbiased_std(n: Numbers, total: Numbers, centred: Numbers, explained: Numbers) -> Numbers:
    """Standard deviation of scopes made of tensors: √(Σᵢ(Mᵢ + nᵢ(meanᵢ − mean)²)/(n − 1)); NaN for one entry.

    `centred` is Σᵢ Mᵢ with Mᵢ a tensor's squares around its own mean, `explained` is Σᵢ nᵢ·meanᵢ².
    """
    between = np.maximum(explained - total**2 / n, 0)
    return np.sqrt(np.where(n > 1, (centred + between) / (n - 1), np.nan))
