"""Sparse and low-rank updates: said where they would have sufficed, nothing where the span was too short to tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from findings.made_run import MadeRun, Number
from learnscope.findings import Cuts, find
from learnscope.findings.updates.update_quality import update_quality
from learnscope.record import Column, Finding, Table

Sparse = tuple[Number, Number, Number]
"""KL of the largest changes, share that is kept, KL of as many of the changed at random."""


def sparse(run: MadeRun, step: int, found: Mapping[float, Sparse], probe: str = "SparseQuality") -> None:
    columns = []
    for threshold, (kl, kept, random) in found.items():
        for mask, far in (("magnitude", kl), ("random_changed", random)):
            labels = {"threshold": threshold, "mask": mask}
            columns += [Column("kl", [far], labels), Column("kept_share", [kept], labels)]
    run.write(probe, step, [Table("model", ["model"], columns)], notes={"span": [step - 100, step]})


def judged_sparse(found: Sequence[Sparse], **cuts: float) -> list[Finding]:
    run = MadeRun()
    for i, one in enumerate(found):
        sparse(run, 100 * (i + 1), {1e-6: one})
    return update_quality(run.reader, Cuts(**cuts))


def test_a_sparse_update_that_does() -> None:
    run = MadeRun()
    kls, shares, randoms = [0.5, 2e-4, 1e-4, 4e-4], [0.05, 0.04, 0.02, 0.03], [0.9, 0.2, 0.1, 0.4]
    for i in range(4):
        found = {1e-8: (0.0, 0.5, 0.01), 1e-6: (kls[i], shares[i], randoms[i]), 1e-4: (0.3, 1e-3, 0.4)}
        sparse(run, 100 * (i + 1), found)
    [finding] = find(run.reader)
    assert (finding.kind, finding.severity) == ("sparse_update_suffices", "info")
    assert finding.title == "3 % of the entries carry the updates in steps 200 to 400"
    for part in ("3 measurements, steps 200 to 400", "beyond 1.0e-06", "2 % to 4 %", "1.0e-04 to 4.0e-04 nats",
                 "at random it was 0.1 to 0.4", "over 100 steps"):  # fmt: skip
        assert part in finding.detail
    assert "`learnscope patch`" in finding.advice
    evidence = finding.evidence
    assert (evidence.probe, evidence.name, evidence.n) == ("SparseQuality", "kl", 3)
    assert (evidence.first_step, evidence.last_step) == (200, 400)
    assert evidence.value == pytest.approx(np.median(kls[1:]))


def test_the_sparsest_of_several_that_do() -> None:
    run = MadeRun()
    for step in (100, 200, 300):
        sparse(run, step, {1e-6: (1e-6, 0.09, 0.1), 1e-4: (1e-4, 0.01, 0.3)})
    [finding] = update_quality(run.reader, Cuts())
    assert "beyond 1.0e-04" in finding.detail


@pytest.mark.parametrize(
    "found",
    [
        [(1e-4, 0.05, 0.1)] * 2,  # too few
        [(1e-4, 0.05, 0.1)] * 3 + [(0.1, 0.05, 0.5)],  # no longer
        [(1e-4, 0.11, 0.1)] * 4,  # not sparse
        [(1.1e-3, 0.05, 0.1)] * 4,  # not near
        [(9e-4, 0.05, 8e-3)] * 4,  # random ones are nearly as good
        [(1e-9, 0.05, 1e-4)] * 4,  # random ones are near enough themselves: nothing was needed
        [(0.0, 0.0, 0.1)] * 4,  # nothing is kept
        [(1e-4, 0.05, None)] * 4,  # nothing to compare with
        [(math.nan, 0.05, 0.1)] * 4,
        [(None, 0.05, 0.1)] * 4,  # regression
    ],
)
def test_nothing_is_said_of_sparse_updates_otherwise(found: list[Sparse]) -> None:
    assert judged_sparse(found) == []


def test_the_cuts_of_sparse_updates_are_options() -> None:
    assert judged_sparse([(1e-4, 0.11, 0.1)] * 3, sparse_kept_share=0.2) != []
    assert judged_sparse([(1.1e-3, 0.05, 0.1)] * 3, quality_kl=0.01) != []


def test_without_baselines_nothing_is_said() -> None:
    run = MadeRun()
    for step in (1, 2, 3):
        labels = {"threshold": 1e-6, "mask": "magnitude"}
        columns = [Column("kl", [1e-5], labels), Column("kept_share", [0.01], labels)]
        run.write("SparseQuality", step, [Table("model", ["model"], columns)])
    assert update_quality(run.reader, Cuts()) == []


def low_rank(run: MadeRun, step: int, kl: Mapping[int, Number], probe: str = "LowRankQuality") -> None:
    """As the probe records it: the smallest rank above 0 whose KL is at most 1e-3 is recommended."""
    enough = [rank for rank, far in kl.items() if rank and far is not None and far <= 1e-3]
    columns = [Column("kl", [far], {"rank": rank}) for rank, far in kl.items()]
    columns += [Column("energy_captured", [rank / 10], {"rank": rank}) for rank in kl if rank]
    columns.append(Column("recommended_rank", [min(enough, default=None)], {"kl_bound": 1e-3}))
    run.write(probe, step, [Table("model", ["model"], columns)], notes={"span": [step - 50, step]})


def judged_low_rank(*found: Mapping[int, Number]) -> list[Finding]:
    run = MadeRun()
    for i, kl in enumerate(found):
        low_rank(run, 100 * (i + 1), kl)
    return update_quality(run.reader, Cuts())


FAR = {0: 0.5, 1: 0.2, 4: 0.1, 8: 0.05}
ONE = {0: 0.3, 1: 2e-4, 4: 1e-4, 8: 1e-5}
FOUR = {0: 0.4, 1: 0.2, 4: 6e-4, 8: 1e-4}
SHORT = {0: 5e-4, 1: 1e-4, 4: 1e-5, 8: 0.0}


def test_a_low_rank_that_does() -> None:
    [finding] = judged_low_rank(FAR, FOUR, ONE, FOUR)
    assert (finding.kind, finding.severity) == ("low_rank_update_suffices", "info")
    assert finding.title == "Rank-4 updates would have sufficed in steps 200 to 400"
    for part in ("3 measurements, steps 200 to 400", "cut to rank 4", "1.0e-04 to 6.0e-04 nats", "bound of 0.001",
                 "it was 0.3 to 0.4", "In single measurements rank 1 did", "holds 40 % of the energy"):  # fmt: skip
        assert part in finding.detail
    assert "updates over 50 steps, not about the whole training" in finding.advice
    assert "LoRA of rank 4" in finding.advice
    evidence = finding.evidence
    assert (evidence.probe, evidence.name, evidence.n) == ("LowRankQuality", "recommended_rank", 3)
    assert (evidence.first_step, evidence.last_step, evidence.value) == (200, 400, 4)


def test_the_smallest_rank_that_holds_for_long_enough() -> None:
    [finding] = judged_low_rank(FOUR, FOUR, ONE, ONE, ONE)
    assert "Rank-1 " in finding.title
    assert finding.evidence.first_step == 300


def test_a_rank_above_the_recommended_one_must_be_near_enough_itself() -> None:
    uneven = {0: 0.3, 1: 2e-4, 4: 0.02, 8: 1e-5}
    [finding] = judged_low_rank(FOUR, uneven, FOUR)
    assert "Rank-8 " in finding.title


def test_no_rank_does() -> None:
    [finding] = judged_low_rank(FAR, {0: 0.02, 1: 0.02, 4: 0.01, 8: 0.007}, FAR)
    assert (finding.kind, finding.severity) == ("update_not_low_rank", "info")
    assert finding.title == "No update of rank 8 or below would have sufficed"
    assert "nearest was 0.007 at rank 8, step 200, where without any update of the matrices it was 0.02" in (
        finding.detail
    )
    assert "holds 80 % of the energy" in finding.detail
    assert (finding.evidence.name, finding.evidence.n, finding.evidence.value) == ("kl", 3, 0.007)
    assert (finding.evidence.first_step, finding.evidence.last_step) == (100, 300)


def test_measurements_in_which_no_update_is_near_enough_do_not_count() -> None:
    assert judged_low_rank(SHORT, SHORT, SHORT, SHORT) == []
    assert judged_low_rank(ONE, SHORT, SHORT, ONE) == []
    [finding] = judged_low_rank(ONE, SHORT, ONE, ONE)
    assert finding.evidence.n == 3
    assert finding.detail.endswith("1 other measurement in which no update at all is near enough does not count.")


@pytest.mark.parametrize(
    "found",
    [
        [ONE, ONE],
        [FAR, FAR],
        [ONE, ONE, ONE, FAR],  # no longer
        [dict.fromkeys((0, 1, 8), None)] * 4,  # regression: there is no KL
        [{0: 0.3, 1: math.nan, 8: math.nan}] * 4,
        [],
    ],
)
def test_nothing_is_said_of_low_ranks_otherwise(found: list[dict[int, Number]]) -> None:
    assert judged_low_rank(*found) == []


def test_every_instance_speaks_for_itself() -> None:
    run = MadeRun()
    for step in (100, 200, 300):
        low_rank(run, step, ONE)
        low_rank(run, step, FAR, "LowRankQuality_2")
        sparse(run, step, {1e-6: (0.1, 0.05, 0.1)})
        sparse(run, step, {1e-6: (1e-4, 0.05, 0.1)}, "SparseQuality_2")
    found = [(finding.kind, finding.evidence.probe) for finding in find(run.reader)]
    assert found == [
        ("sparse_update_suffices", "SparseQuality_2"),
        ("low_rank_update_suffices", "LowRankQuality"),
        ("update_not_low_rank", "LowRankQuality_2"),
    ]
