"""Whether a sparse or a low-rank update would have sufficed, judged by the outputs of the model with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities import Quantity
from learnscope.quantities.updates import LowRankQuality, SparseQuality
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, labels_of
from learnscope.reading.streaks import streaks
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

Rows = NDArray[np.int64]
WORSE = 10.0
"""How many times further off the same number of changes picked at random must be."""


@analysis(place=110, check="sparse and low-rank updates", needs=[(SparseQuality.kl, LowRankQuality.kl)])
def update_quality(reader: RunReader, cuts: Cuts) -> list[Finding]:
    sparse = [_sparse(reader, label, cuts) for label in labels_of(reader, SparseQuality)]
    low_rank = [_low_rank(reader, label, cuts) for label in labels_of(reader, LowRankQuality)]
    return [finding for finding in (*sparse, *low_rank) if finding is not None]


def _by_step(reader: RunReader, label: str, quantity: Quantity, by: str, **labels: str) -> pd.DataFrame:
    """One row a step, one column a value of the label `by`; NaN where there is no number."""
    frame = reader.frame(label, quantity.name, "model")
    if not {by, *labels} <= {*frame.columns}:
        return pd.DataFrame()
    for key, value in labels.items():
        frame = frame[frame[key] == value]
    frame = frame[frame[by].notna()].drop_duplicates(["step", by], keep="last")
    return frame.pivot(index="step", columns=by, values="value").sort_index().astype(float)


def _lasting(holds: NDArray[np.bool_], measured: NDArray[np.bool_], at_least: int) -> Rows | None:
    """The last measurements in which something holds, if they are enough."""
    latest = streaks(holds[:, None], measured[:, None], at_least)
    return latest[0].rows if latest and latest[0].lasting else None


def _spans(reader: RunReader, label: str, steps: list[int]) -> str:
    """How many steps the updates of these measurements take."""
    spans = [r.notes["span"] for r in reader.records(label) if r.step in set(steps) and r.notes.get("span")]
    lengths = sorted({int(last) - int(first) for first, last in spans})
    if not lengths:
        return "between two measurements"
    return f"over {count(lengths[0], 'step') if len(lengths) == 1 else f'{lengths[0]:,} to {lengths[-1]:,} steps'}"


def _range(values: Floats, text: Callable[[float], str] = num) -> str:
    return " to ".join(dict.fromkeys(text(float(value)) for value in (values.min(), values.max())))


def _sparse(reader: RunReader, label: str, cuts: Cuts) -> Finding | None:
    kl, kept, random, random_kept = (
        _by_step(reader, label, quantity, "threshold", mask=mask)
        for mask in ("magnitude", "random_changed")
        for quantity in (SparseQuality.kl, SparseQuality.kept_share)
    )
    kept, random, random_kept = (frame.reindex_like(kl) for frame in (kept, random, random_kept))
    for threshold in sorted(kl.columns, reverse=True):  # the sparsest first
        far, share, baseline = (frame[threshold].to_numpy(np.float64) for frame in (kl, kept, random))
        # the baseline kept as many entries, or fewer where fewer have changed at all
        alike = random_kept[threshold].to_numpy(np.float64) <= share
        # a baseline within the bound means that hardly any update was needed in this span, which proves nothing
        holds = (share > 0) & (share <= cuts.sparse_kept_share) & (far <= cuts.quality_kl)
        holds &= alike & (baseline > cuts.quality_kl) & (baseline >= WORSE * far)
        rows = _lasting(holds, np.isfinite(far), cuts.measurements)
        if rows is not None:
            steps = [int(step) for step in kl.index[rows]]
            return _sparse_finding(reader, label, float(threshold), steps, far[rows], share[rows], baseline[rows])
    return None


def _sparse_finding(
    reader: RunReader, label: str, threshold: float, steps: list[int], far: Floats, share: Floats, baseline: Floats
) -> Finding:
    when = between(steps[0], steps[-1])
    return Finding(
        kind="sparse_update_suffices",
        severity="info",
        title=f"{percent(float(np.median(share)))} of the entries carry the updates in {when}",
        detail=f"In {count(len(steps), 'measurement')}, {when}, the model that kept only the "
        f"changes beyond {num(threshold)}, {_range(share, percent)} of the entries, was a mean KL of "
        f"{_range(far)} nats from the model itself; with as many of the changed entries picked at random it was "
        f"{_range(baseline)}. Each update is one {_spans(reader, label, steps)}.",
        advice=f"Where updates of this length are sent or stored, a sparse one would do: undo the changes of at most "
        f"{num(threshold)}, and `learnscope patch` writes only the entries that still differ.",
        evidence=evidence_over(steps, label, SparseQuality.kl, len(steps), float(np.median(far))),
    )


@dataclass(frozen=True)
class _Ranks:
    """Measurements of low-rank updates, without those in which the model without any update is near enough."""

    label: str
    kl: pd.DataFrame
    recommended: Floats
    bound: Floats
    energy: pd.DataFrame
    left_out: int

    @property
    def steps(self) -> list[int]:
        return [int(step) for step in self.kl.index]

    @property
    def ranks(self) -> list[float]:
        return [rank for rank in self.kl.columns.astype(float) if rank > 0]

    def more(self, rank: float, rows: Rows) -> str:
        """The energy that a rank holds, and how many measurements do not count."""
        energy = self.energy[rank].to_numpy(np.float64)[rows] if rank in self.energy else np.empty(0)
        energy = energy[np.isfinite(energy)]
        text = f" That rank holds {_range(energy, percent)} of the energy of the updates." if len(energy) else ""
        if self.left_out:
            text += (
                f" {count(self.left_out, 'other measurement')} in which no update at all is near enough "
                f"{'does' if self.left_out == 1 else 'do'} not count."
            )
        return text


def _measured_ranks(reader: RunReader, label: str) -> _Ranks | None:
    kl, energy = (
        _by_step(reader, label, quantity, "rank") for quantity in (LowRankQuality.kl, LowRankQuality.energy_captured)
    )
    frame = reader.frame(label, LowRankQuality.recommended_rank.name, "model")
    if kl.empty or 0 not in kl or "kl_bound" not in frame:
        return None
    frame = frame.drop_duplicates("step", keep="last").set_index("step").reindex(kl.index)
    bound = frame["kl_bound"].to_numpy(np.float64)
    no_update = kl[0].to_numpy(np.float64)
    measured = np.isfinite(no_update) & np.isfinite(bound) & kl.drop(columns=0).notna().any(axis=1).to_numpy()
    counted = measured & (no_update > bound)
    recommended = frame["value"].to_numpy(np.float64)[counted]
    energy = energy.reindex(index=kl.index[counted])
    return _Ranks(label, kl[counted], recommended, bound[counted], energy, int((measured & ~counted).sum()))


def _low_rank(reader: RunReader, label: str, cuts: Cuts) -> Finding | None:
    measured = _measured_ranks(reader, label)
    if measured is None or len(measured.steps) < cuts.measurements:
        return None
    if not np.isfinite(measured.recommended).any():
        return _not_low_rank(reader, measured)
    for rank in measured.ranks:
        # the KL need not fall with every rank: this very one must be near enough too
        holds = (measured.recommended <= rank) & (measured.kl[rank].to_numpy(np.float64) <= measured.bound)
        rows = _lasting(holds, np.ones(len(holds), dtype=bool), cuts.measurements)
        if rows is not None:
            return _low_rank_finding(reader, measured, rank, rows)
    return None


def _low_rank_finding(reader: RunReader, measured: _Ranks, rank: float, rows: Rows) -> Finding:
    steps = [measured.steps[row] for row in rows]
    when = between(steps[0], steps[-1])
    far, no_update = (measured.kl[r].to_numpy(np.float64)[rows] for r in (rank, 0))
    least = measured.recommended[rows]
    # the figure shows the smallest rank of each measurement, the title the one that does in all
    alone = f" In single measurements rank {num(float(np.min(least)))} did." if np.min(least) < rank else ""
    return Finding(
        kind="low_rank_update_suffices",
        severity="info",
        title=f"Rank-{rank:g} updates would have sufficed in {when}",
        detail=f"In {count(len(steps), 'measurement')}, {when}, the model with the update of "
        f"every matrix cut to rank {rank:g} was a mean KL of {_range(far)} nats from the model itself, within the "
        f"bound of {_range(measured.bound[rows])}; without any update of the matrices it was {_range(no_update)}."
        f"{alone}{measured.more(rank, rows)}",
        advice=f"This is about updates {_spans(reader, measured.label, steps)}, not about the whole training, of which "
        f"the updates may add up to a higher rank: a LoRA of rank {rank:g} on every matrix, with biases and norms "
        "trained whole, would have sufficed for each of them.",
        evidence=evidence_over(
            steps, measured.label, LowRankQuality.recommended_rank, len(steps), float(np.max(least))
        ),
    )


def _not_low_rank(reader: RunReader, measured: _Ranks) -> Finding:
    kl, steps, highest = measured.kl.drop(columns=0).to_numpy(np.float64), measured.steps, max(measured.ranks)
    row, column = (int(place) for place in np.unravel_index(np.nanargmin(kl), kl.shape))
    rank, least = measured.ranks[column], float(kl[row, column])
    return Finding(
        kind="update_not_low_rank",
        severity="info",
        title=f"No update of rank {highest:g} or below would have sufficed",
        detail=f"In {count(len(steps), 'measurement')}, {between(steps[0], steps[-1])}, the model with the update of "
        f"every matrix cut to a rank of up to {highest:g} was never within a mean KL of {_range(measured.bound)} "
        f"nats of the model itself. The nearest was {num(least)} at rank {rank:g}, step {steps[row]:,}, where "
        f"without any update of the matrices it was {num(float(measured.kl[0].iloc[row]))}."
        f"{measured.more(rank, np.array([row]))}",
        advice=f"This is about updates {_spans(reader, measured.label, steps)}. A LoRA of such a rank would lose some "
        "of them: take a higher rank (LowRankQuality(ranks=...) measures it), or train the weights themselves.",
        evidence=evidence_over(steps, measured.label, LowRankQuality.kl, len(steps), least),
    )
