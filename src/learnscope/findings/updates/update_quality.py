"""Whether a sparse or a low-rank update would have done, judged by the outputs of the model with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.findings.registry import analysis
from learnscope.quantities import Quantity
from learnscope.quantities.updates import LowRankQuality, SparseQuality
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, labels_of
from learnscope.reading.streaks import streaks
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

Rows = NDArray[np.int64]
WORSE = 10.0
"""How many times further off the same number of changes picked at random must be."""


@analysis(place=110)
def update_quality(reader: RunReader, cuts: Cuts) -> list[Finding]:
    sparse = [_sparse(reader, label, cuts) for label in labels_of(reader, SparseQuality)]
    low_rank = [_low_rank(reader, label, cuts) for label in labels_of(reader, LowRankQuality)]
    return [finding for finding in (*sparse, *low_rank) if finding is not None]


def _by_step(reader: RunReader, label: str, quantity: Quantity, by: str, **wanted: str) -> pd.DataFrame:
    """Steps down, the values of a label across; NaN where there is no number."""
    frame = reader.frame(label, quantity.name, "model")
    if not {by, *wanted} <= {*frame.columns}:
        return pd.DataFrame()
    for key, value in wanted.items():
        frame = frame[frame[key] == value]
    frame = frame[frame[by].notna()].drop_duplicates(["step", by], keep="last")
    return frame.pivot(index="step", columns=by, values="value").sort_index().astype(float)


def _lasting(holds: NDArray[np.bool_], measured: NDArray[np.bool_], at_least: int) -> Rows | None:
    """The last measurements in which something holds, if they are enough."""
    found = streaks(holds[:, None], measured[:, None], at_least)
    return found[0].rows if found and found[0].lasting else None


def _spans(reader: RunReader, label: str, steps: list[int]) -> str:
    """Over how many steps the updates of these measurements reach."""
    chosen = [r.notes["span"] for r in reader.records(label) if r.step in set(steps) and r.notes.get("span")]
    lengths = sorted({int(last) - int(first) for first, last in chosen})
    if not lengths:
        return "between two measurements"
    return f"over {count(lengths[0], 'step') if len(lengths) == 1 else f'{lengths[0]:,} to {lengths[-1]:,} steps'}"


def _range(values: Floats, *, share: bool = False) -> str:
    said = [percent(v) if share else num(v) for v in (float(values.min()), float(values.max()))]
    return " to ".join(dict.fromkeys(said))


def _sparse(reader: RunReader, label: str, cuts: Cuts) -> Finding | None:
    kl, kept, random, random_kept = (
        _by_step(reader, label, quantity, "threshold", mask=mask)
        for mask in ("magnitude", "random_changed")
        for quantity in (SparseQuality.kl, SparseQuality.kept_share)
    )
    kept, random, random_kept = (one.reindex_like(kl) for one in (kept, random, random_kept))
    for threshold in sorted(kl.columns, reverse=True):  # the sparsest first
        far, share, baseline = (one[threshold].to_numpy(np.float64) for one in (kl, kept, random))
        # as many of them, but where fewer have changed at all
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
    return Finding(
        kind="sparse_update_suffices",
        severity="info",
        title=f"{percent(float(np.median(share)))} of the entries carry the updates in {between(steps[0], steps[-1])}",
        detail=f"In {count(len(steps), 'measurement')}, {between(steps[0], steps[-1])}, the model that kept only the "
        f"changes beyond {num(threshold)}, {_range(share, share=True)} of the entries, was a mean KL of "
        f"{_range(far)} nats from the model itself; with as many of the changed entries picked at random it was "
        f"{_range(baseline)}. Each update is one {_spans(reader, label, steps)}.",
        advice=f"Where updates of this length are sent or stored, a sparse one would do: undo the changes of at most "
        f"{num(threshold)}, and `learnscope patch` writes only the entries that still differ.",
        evidence=Evidence(
            probe=label,
            name=SparseQuality.kl.name,
            n=len(steps),
            first_step=steps[0],
            last_step=steps[-1],
            value=float(np.median(far)),
        ),
    )


@dataclass(frozen=True)
class _Ranks:
    """What an instance measured of low-rank updates where no update at all is not near enough already."""

    label: str
    kl: pd.DataFrame
    recommended: Floats
    bound: Floats
    energy: pd.DataFrame
    left_out: int
    """Measurements in which no update at all is near enough."""

    @property
    def steps(self) -> list[int]:
        return [int(step) for step in self.kl.index]

    @property
    def ranks(self) -> list[float]:
        return [rank for rank in self.kl.columns.astype(float) if rank > 0]

    def said_left_out(self) -> str:
        if not self.left_out:
            return ""
        return (
            f" {count(self.left_out, 'other measurement')} in which no update at all is near enough "
            f"{'does' if self.left_out == 1 else 'do'} not count."
        )


def _measured_ranks(reader: RunReader, label: str) -> _Ranks | None:
    kl, energy = (
        _by_step(reader, label, quantity, "rank") for quantity in (LowRankQuality.kl, LowRankQuality.energy_captured)
    )
    frame = reader.frame(label, LowRankQuality.recommended_rank.name, "model")
    if kl.empty or 0 not in kl or "kl_bound" not in frame:
        return None
    frame = frame.drop_duplicates("step", keep="last").set_index("step").reindex(kl.index)
    bound = frame["kl_bound"].to_numpy(np.float64)
    none = kl[0].to_numpy(np.float64)
    known = np.isfinite(none) & np.isfinite(bound) & kl.drop(columns=0).notna().any(axis=1).to_numpy()
    counted = known & (none > bound)
    recommended = frame["value"].to_numpy(np.float64)[counted]
    energy = energy.reindex(index=kl.index[counted])
    return _Ranks(label, kl[counted], recommended, bound[counted], energy, int((known & ~counted).sum()))


def _low_rank(reader: RunReader, label: str, cuts: Cuts) -> Finding | None:
    found = _measured_ranks(reader, label)
    if found is None or len(found.steps) < cuts.measurements:
        return None
    if not np.isfinite(found.recommended).any():
        return _not_low_rank(reader, found)
    for rank in found.ranks:
        far = found.kl[rank].to_numpy(np.float64)
        # the KL need not fall with every rank: this very one must be near enough too
        holds = (found.recommended <= rank) & (far <= found.bound)
        rows = _lasting(holds, np.ones(len(holds), dtype=bool), cuts.measurements)
        if rows is not None:
            return _low_rank_finding(reader, found, rank, rows)
    return None


def _low_rank_finding(reader: RunReader, found: _Ranks, rank: float, rows: Rows) -> Finding:
    steps = [found.steps[row] for row in rows]
    far, none = (found.kl[one].to_numpy(np.float64)[rows] for one in (rank, 0))
    spans = _spans(reader, found.label, steps)
    return Finding(
        kind="low_rank_update_suffices",
        severity="info",
        title=f"Updates of rank {rank:g} would have done in {between(steps[0], steps[-1])}",
        detail=f"In {count(len(steps), 'measurement')}, {between(steps[0], steps[-1])}, the model with the update of "
        f"every matrix cut to rank {rank:g} was a mean KL of {_range(far)} nats from the model itself, within the "
        f"bound of {_range(found.bound[rows])}; without any update of the matrices it was {_range(none)}."
        f"{_energy(found, rank, rows)}{found.said_left_out()}",
        advice=f"This is about updates {spans}, not about the whole training, of which the updates may add up to a "
        f"higher rank: a LoRA of rank {rank:g} on every matrix, with biases and norms trained whole, would have done "
        "for each of them.",
        evidence=Evidence(
            probe=found.label, name=LowRankQuality.recommended_rank.name, n=len(steps), first_step=steps[0],
            last_step=steps[-1], value=float(np.max(found.recommended[rows])),
        ),
    )  # fmt: skip


def _energy(found: _Ranks, rank: float, rows: Rows) -> str:
    held = found.energy[rank].to_numpy(np.float64)[rows] if rank in found.energy else np.empty(0)
    held = held[np.isfinite(held)]
    return f" That rank holds {_range(held, share=True)} of the energy of the updates." if len(held) else ""


def _not_low_rank(reader: RunReader, found: _Ranks) -> Finding:
    kl = found.kl.drop(columns=0).to_numpy(np.float64)
    row, column = np.unravel_index(np.nanargmin(kl), kl.shape)
    rank, least = found.ranks[int(column)], float(kl[row, column])
    at = np.array([row], dtype=np.int64)
    steps = found.steps
    return Finding(
        kind="update_not_low_rank",
        severity="info",
        title=f"No update of rank {max(found.ranks):g} or below would have done",
        detail=f"In {count(len(steps), 'measurement')}, {between(steps[0], steps[-1])}, the model with the update of "
        f"every matrix cut to a rank of up to {max(found.ranks):g} was never within a mean KL of {_range(found.bound)} "
        f"nats of the model itself. The nearest was {num(least)} at rank {rank:g}, step {steps[int(row)]:,}, where "
        f"without any update of the matrices it was {num(float(found.kl[0].iloc[int(row)]))}."
        f"{_energy(found, rank, at)}{found.said_left_out()}",
        advice=f"This is about updates {_spans(reader, found.label, steps)}. A LoRA of such a rank would lose some of "
        "them: take a higher rank (LowRankQuality(ranks=...) measures it), or train the weights themselves.",
        evidence=Evidence(
            probe=found.label,
            name=LowRankQuality.kl.name,
            n=len(steps),
            first_step=steps[0],
            last_step=steps[-1],
            value=least,
        ),
    )
