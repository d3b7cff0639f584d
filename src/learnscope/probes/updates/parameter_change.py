"""How far and how densely the weights have moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe
from learnscope.probes.updates.absorption import absorbed_tables, take_sample
from learnscope.probes.updates.changes import Changes, changes
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.segments import Segments


class ParameterChange(Probe):
    """Δ = W_now − W_at the last measurement, per tensor, layer, component, optimizer group, and overall.

    | name | meaning |
    |---|---|
    | `l1`, `l2`, `max` | Σ|Δ|, √ΣΔ², max|Δ| |
    | `mean`, `mean_abs`, `std` | of the entries of Δ; the standard deviation is unbiased |
    | `sparsity` | share of entries with |Δ| ≤ `threshold` (a label, with the weights' `dtype`) |
    | `visible_share` | share of entries whose stored bits changed |
    | `sign_flip_share` | share of entries that changed sign |
    | `update_to_weight` | ‖Δ‖/‖W‖, W before the change |
    | `nan`, `inf` | entries of Δ that are not finite; they make the norms null and count as changed |
    | `absorbed_share` (`_low`, `_high`) | model and layer: entries that the last step's update left \
bit-identical though it was not zero in float32, on a sample, with a 95 % interval; null for an optimizer \
whose update is not known |
    | `absorbed_coverage` | model and layer: share of the updated entries whose optimizer is known, of which \
`absorbed_share` is a share |
    | `decay_absorbed_share` (`_low`, `_high`) | model and layer: of the entries with a weight decay other than 0, \
those on which it leaves no trace, on the same sample. Label `rounding`: `apart`, where decay is rounded by itself \
(w·(1 − ηλ) is w again, or for decay by the gradient g + λw is g again); `together`, a fused AdamW, which rounds \
once: the weight did not change at all |

    The record's note `span` holds the two steps between which Δ lies. Sums are float64 throughout.
    """

    every: int = 100
    thresholds: Sequence[float] = (1e-8, 1e-6, 1e-4)
    per_tensor: bool = True
    snapshot_device: str = "cpu"
    """Where the previous weights are kept: a torch device, or "disk"."""
    snapshot_dtype: str = "native"
    """Their dtype: each weight's own, or a float dtype."""
    absorbed: bool | None = None
    """Measure what rounding absorbs; None: of half-precision weights only, where it matters."""
    sample_size: int = 1024
    """Entries of each tensor on which absorption is measured."""

    needs: ClassVar[frozenset[str]] = frozenset({"previous"})
    reads_only: ClassVar[bool] = True

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
        before = moment.previous
        found = changes(moment, self.thresholds)
        kinds = ["model", "layer", "component", *moment.subject.group_kinds]
        tables = [
            change_table(
                kind,
                moment.subject.segments(kind, found.positions),
                found,
                self.thresholds,
                found.dtype,
                self.snapshot_dtype,
            )
            for kind in [*kinds, *(["tensor"] if self.per_tensor else [])]
        ]
        samples = moment.state.pop("_sample", None)
        if samples is not None:
            tables += absorbed_tables(moment, samples)
        return Measurement(tables, notes={"span": [before.step, moment.step]})


def change_table(
    kind: str, segments: Segments, found: Changes, thresholds: Sequence[float], dtype: str, kept: str = "native"
) -> Table:
    """The statistics of Δ over the scopes of `segments`; `kept` is the dtype of the previous weights."""
    sums = segments.sum(_stacked(found, thresholds))
    n, total, l1, squares, old, flips, bits, nan, inf, centred, explained = sums[:, :11].unbind(1)
    columns = [
        Column("l1", l1),
        Column("l2", squares.sqrt()),
        Column("max", segments.max(found.table.largest)),
        Column("mean", total / n),
        Column("mean_abs", l1 / n),
        Column("std", unbiased_std(n, total, centred, explained)),
        Column("update_to_weight", (squares / old).sqrt()),
        Column("sign_flip_share", flips / n),
        Column("visible_share", bits / n, {}, _not_compared(bits, kept)),
        Column("nan", nan),
        Column("inf", inf),
    ]
    columns += [
        Column("sparsity", within / n, {"threshold": threshold, "dtype": dtype})
        for threshold, within in zip(thresholds, sums[:, 11:].unbind(1), strict=True)
    ]
    return Table(kind, segments.scopes, columns)


def _not_compared(bits: Tensor, kept: str) -> dict[int, str]:
    """Why there is no visible share where the kept copy is of another, narrower dtype than the weights."""
    reason = f"weights kept as {kept} cannot be compared bit by bit"
    return {scope: reason for scope, missing in enumerate(bits.isnan().tolist()) if missing}


def _stacked(found: Changes, thresholds: Sequence[float]) -> Tensor:
    """One row a tensor, so that every scope is a single sum over rows."""
    table = found.table
    columns = (
        table.entries, table.total, table.l1, table.sum_squares, table.old_sum_squares, table.sign_flips,
        table.bits_changed, table.nan, table.inf, table.centred_squares, table.total.square() / table.entries,
    )  # fmt: skip
    return torch.cat([torch.stack(columns, 1), found.within(thresholds)], 1)


def unbiased_std(n: Tensor, total: Tensor, centred: Tensor, explained: Tensor) -> Tensor:
    """Standard deviation of scopes made of tensors: √(Σᵢ(Mᵢ + nᵢ(meanᵢ − mean)²)/(n − 1)); NaN for one entry.

    `centred` is Σᵢ Mᵢ with Mᵢ a tensor's squares around its own mean, `explained` is Σᵢ nᵢ·meanᵢ².
    """
    between = (explained - total.square() / n).clamp(min=0)
    return torch.where(n > 1, (centred + between) / (n - 1), torch.nan).sqrt()
