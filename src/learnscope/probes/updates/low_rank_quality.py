"""Whether a low-rank update, as LoRA makes it, would have sufficed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from learnscope.core.moment import Moment
from learnscope.core.probe import Probe, Schedule
from learnscope.core.subject import Subject
from learnscope.model.outputs.reference import Reference
from learnscope.model.updates.lowrank import LowRankUpdate, decompose_update, matrix_names
from learnscope.model.weights.rounded import as_they_were, precision_note
from learnscope.options import is_whole
from learnscope.probes.outputs.columns import (
    compared_with,
    holdout_reference,
    output_columns,
    read_together,
    undefined_comparisons,
    with_cosine_reasons,
)
from learnscope.quantities.updates import LowRankQuality as Q
from learnscope.record import Column, Measurement, Table

ENERGY = 0.9
UNCHANGED = "no matrix of it changed"
UNDECOMPOSED = "its update has entries that are not finite"


class LowRankQuality(Probe):
    """The model with the update ΔW = W_now − W_at the last measurement of each matrix cut to a low rank.

    For each rank r the model runs with W_previous + the best approximation of ΔW of rank r and is compared with
    itself on the holdout examples. Matrices have two dimensions, both above 1 (`Linear`, `Conv1D`, embeddings), or
    are kernels of convolutions, read as [out, in·k·k]. Everything else, biases and norms, keeps its whole update.
    Rank 0 is no update of the matrices at all: it gives the scale.

    Notes: `span` (the steps between which ΔW lies), `undecomposed` and `not_matrices` (names; the latter have more
    dimensions but belong to no convolution, and keep their whole update), `extra_memory` (bytes: factors and one
    copy of the changed matrices, beside the snapshot; a truncated update is no exchange of entries).

    A `snapshot_dtype` narrower than the weights' adds rounding to the ΔW of weights that changed, which has full rank:
    keep it native.
    """

    every: Schedule = 100
    ranks: Sequence[int] = (1, 2, 4, 8, 16, 32)
    examples: int = 32
    kl_bound: float = 1e-3
    """How far is near enough, in nats per position: a text coded with the variant's probabilities instead of the
    model's own would be that much longer, which for 1e-3 is a perplexity higher by 0.1 %."""
    snapshot_device: str = "cpu"
    """Where the previous weights are kept: a torch device, or "disk"."""
    snapshot_dtype: str = "native"
    """Their dtype: each weight's own, or a float dtype."""

    needs = frozenset({"previous", "holdout"})
    cost = "a decomposition of every matrix's update; forwards on `examples` holdout examples for each rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ranks or not all(is_whole(rank, 1) for rank in self.ranks):
            raise ValueError(
                f"LowRankQuality(ranks={self.ranks!r}): ranks are whole numbers from 1; rank 0 is always measured"
            )
        if self.examples < 1:
            raise ValueError(f"LowRankQuality(examples={self.examples}): at least one example is needed")
        if not self.kl_bound > 0:
            raise ValueError(f"LowRankQuality(kl_bound={self.kl_bound}): a bound is above 0; equal outputs have KL 0")

    def measure(self, moment: Moment) -> Measurement:
        subject, before = moment.subject, moment.previous
        subject.refresh()
        now = subject.by_name()
        before.check(now)
        batches, reference = holdout_reference(moment, self.examples)
        names, others = matrix_names(moment.model)
        ranks = sorted(set(self.ranks))
        previous = as_they_were(before, now)
        update = decompose_update(now, previous, names, ranks[-1])
        compared: dict[int, dict[str, Tensor]] = {}
        for rank in (0, *ranks):
            with moment.exchanged(update.variant(previous, rank)):
                compared[rank] = compared_with(moment, batches, reference)
        # frozen matrices are only counted
        silent = {name for name in update.unchanged if not now[name].requires_grad}
        positions = [i for i, name in enumerate(subject.names) if name in {*names} - silent]
        energies = {
            kind: _energies(subject, update, kind, positions, ranks) for kind in ("model", "layer", "component")
        }
        outputs = self._output_columns(read_together(compared), reference)
        counts = {
            Q.decomposed: len(update.factors),
            Q.approximated: sum(not factors.exact for factors in update.factors.values()),
            Q.unchanged: len(update.unchanged),
            Q.undecomposed: len(update.undecomposed),
        }
        columns = [*outputs, *energies.pop("model").columns, *(q.column([count]) for q, count in counts.items())]
        tables = [Table("model", ["model"], columns), *energies.values(), _tensor_table(subject, update, positions)]
        notes = {"span": [before.step, moment.step], "extra_memory": update.nbytes}
        notes |= precision_note(before, now)
        notes |= {"undecomposed": update.undecomposed} if update.undecomposed else {}
        notes |= {"not_matrices": others} if others else {}
        return Measurement([table for table in tables if table.scopes], notes=notes, finish=with_cosine_reasons)

    def _output_columns(
        self, numbers: Mapping[int, Mapping[str, float]], reference: Sequence[Reference]
    ) -> list[Column]:
        """The outputs of each rank, and the recommended rank."""
        columns = [c for rank, values in numbers.items() for c in output_columns(Q, values, reference, {"rank": rank})]
        kl = {rank: numbers[rank][Q.kl.name] for rank in numbers if rank}
        labels = {"kl_bound": self.kl_bound}
        enough = [rank for rank, value in kl.items() if value <= self.kl_bound]
        if enough:
            return [*columns, Q.recommended_rank.column([min(enough)], labels)]
        best = min((value for value in kl.values() if not math.isnan(value)), default=math.nan)
        reason = f"the mean KL is above {self.kl_bound:g} at every rank up to {max(kl)}; the smallest is {best:.3g}"
        if math.isnan(best):
            reason = undefined_comparisons(reference).get(Q.kl.name) or "the KL is NaN at every rank"
        return [*columns, Q.recommended_rank.column([None], labels, {0: reason})]


def _energies(
    subject: Subject, update: LowRankUpdate, kind: str, positions: Sequence[int], ranks: Sequence[int]
) -> Table:
    segments = subject.segments(kind, positions)
    names = [subject.names[i] for i in positions]
    factors = [update.factors.get(name) for name in names]
    totals = segments.sum(torch.tensor([0.0 if f is None else f.sum_squares for f in factors], dtype=torch.float64))
    broken = segments.sum(torch.tensor([float(name in update.undecomposed) for name in names]))
    if not segments.scopes and kind == "model":
        return Table(kind, ["model"], [Q.energy_captured.cells([UNCHANGED], rank=rank) for rank in ranks])
    status = {
        place: UNDECOMPOSED if bad else UNCHANGED
        for place, (total, bad) in enumerate(zip(totals.tolist(), broken.tolist(), strict=True))
        if total == 0
    }
    columns = []
    for rank in ranks:
        energy = torch.tensor([0.0 if f is None else f.energy(rank) for f in factors], dtype=torch.float64)
        columns.append(Q.energy_captured.column((segments.sum(energy) / totals).tolist(), {"rank": rank}, status))
    return Table(kind, segments.scopes, columns)


def _tensor_table(subject: Subject, update: LowRankUpdate, positions: Sequence[int]) -> Table:
    names = [subject.names[i] for i in positions]
    stable: list[float | str] = []
    needed: list[float | str] = []
    for name in names:
        factors = update.factors.get(name)
        if factors is None:
            stable.append(UNDECOMPOSED if name in update.undecomposed else "it did not change")
            needed.append(stable[-1])
        else:
            stable.append(factors.stable_rank)
            rank = factors.rank_for(ENERGY)
            beyond = f"more than {len(factors.values)}, the largest rank that was computed"
            needed.append(beyond if rank is None else rank)
    return Table("tensor", names, [Q.stable_rank.cells(stable), Q.rank_for_energy.cells(needed, energy=ENERGY)])
