"""How far and how densely the weights have moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from learnscope.moment import Moment
from learnscope.probes.absorption import absorbed_tables, take_sample
from learnscope.probing import Probe
from learnscope.record import Column, Measurement, Table
from learnscope.tensor.delta import DeltaTable, delta_statistics


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
        half = any(p.is_floating_point() and p.element_size() == 2 for p in moment.subject.parameters)
        if moment.optimizers and (half if self.absorbed is None else self.absorbed):
            moment.state["_sample"] = take_sample(moment.subject, self.sample_size)

    def measure(self, moment: Moment) -> Measurement:
        subject, before = moment.subject, moment.previous
        subject.refresh()
        now = subject.by_name()
        before.check(now)
        positions = [i for i, p in enumerate(subject.parameters) if p.is_floating_point()]
        names = [subject.names[i] for i in positions]
        key = ("delta", id(before), tuple(self.thresholds))
        table = moment.once(
            key,
            lambda: delta_statistics(
                [now[name].detach() for name in names],
                [before.tensors[name] for name in names],
                self.thresholds,
            ),
        )
        dtypes = {str(now[name].dtype).removeprefix("torch.") for name in names}
        dtype = dtypes.pop() if len(dtypes) == 1 else "mixed"
        kinds = ["model", "layer", "component", *(["group"] if moment.optimizers else [])]
        tables = [
            self._table(moment, table, kind, positions, dtype)
            for kind in [*kinds, *(["tensor"] if self.per_tensor else [])]
        ]
        samples = moment.state.pop("_sample", None)
        if samples is not None:
            tables += absorbed_tables(moment, samples)
        return Measurement(tables, notes={"span": [before.step, moment.step]})

    def _table(self, moment: Moment, table: DeltaTable, kind: str, positions: Sequence[int], dtype: str) -> Table:
        segments = moment.subject.segments(kind, positions)
        sums = segments.sum(_stacked(table))
        n, total, l1, squares, old, flips, bits, nan, inf, centred, explained = sums[:, :11].unbind(1)
        columns = [
            Column("l1", l1),
            Column("l2", squares.sqrt()),
            Column("max", segments.max(table.largest)),
            Column("mean", total / n),
            Column("mean_abs", l1 / n),
            Column("std", unbiased_std(n, total, centred, explained)),
            Column("update_to_weight", (squares / old).sqrt()),
            Column("sign_flip_share", flips / n),
            Column("visible_share", bits / n, {}, self._not_compared(bits)),
            Column("nan", nan),
            Column("inf", inf),
        ]
        columns += [
            Column("sparsity", within / n, {"threshold": threshold, "dtype": dtype})
            for threshold, within in zip(self.thresholds, sums[:, 11:].unbind(1), strict=True)
        ]
        return Table(kind, segments.scopes, columns)

    def _not_compared(self, bits: Tensor) -> dict[int, str]:
        """Why there is no visible share where the kept copy is of another, narrower dtype than the weights."""
        reason = f"weights kept as {self.snapshot_dtype} cannot be compared bit by bit"
        return {scope: reason for scope, missing in enumerate(bits.isnan().tolist()) if missing}


def _stacked(table: DeltaTable) -> Tensor:
    """One row a tensor, so that every scope is a single sum over rows."""
    columns = (
        table.entries, table.total, table.l1, table.sum_squares, table.old_sum_squares, table.sign_flips,
        table.bits_changed, table.nan, table.inf, table.centred_squares, table.total.square() / table.entries,
    )  # fmt: skip
    return torch.cat([torch.stack(columns, 1), table.within], 1)


def unbiased_std(n: Tensor, total: Tensor, centred: Tensor, explained: Tensor) -> Tensor:
    """Standard deviation of scopes made of tensors: √(Σᵢ(Mᵢ + nᵢ(meanᵢ − mean)²)/(n − 1)); NaN for one entry.

    `centred` is Σᵢ Mᵢ with Mᵢ a tensor's squares around its own mean, `explained` is Σᵢ nᵢ·meanᵢ².
    """
    between = (explained - total.square() / n).clamp(min=0)
    return torch.where(n > 1, (centred + between) / (n - 1), torch.nan).sqrt()
