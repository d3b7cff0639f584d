"""Ranks of adapters that are larger than they need be, and ranks that are used up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities.adapters import AdapterSpectrum, AdapterTruncation
from learnscope.reading.adapter_tables import AdapterTables, TriedRanks
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats
from learnscope.reading.streaks import streaks
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Evidence, Finding

TELLING_RANK = 4
"""Below it, an even use of all directions is what two or three of them often show."""


def rank_large(adapter: AdapterTables, cuts: Cuts) -> Finding | None:
    """By ranks that were tried where there are some, else by how few directions the updates use."""
    if adapter.tried is not None:
        return _tried_lower(adapter, adapter.tried, cuts)
    lasting = _lasting(adapter, cuts, lambda use: use <= cuts.idle_rank)
    modules = _measured(adapter)
    if 2 * len(lasting) <= modules or not lasting:
        return None
    use, firsts, lasts = zip(*lasting.values(), strict=True)
    return Finding(
        kind="adapter_rank_large",
        severity="info",
        title=f"{count(len(lasting), 'adapted module')} of {modules} use few of their directions{adapter.title_ending}",
        detail=f"The effective rank is {percent(min(use))} to {percent(max(use))} of the rank in "
        f"{listed(list(lasting), cuts.names_listed)}, in at least {count(cuts.measurements, 'measurement')} to step "
        f"{max(lasts):,}. A lower rank has not been tried.",
        advice="Add AdapterTruncation with holdout= to have lower ranks tried, or train with a smaller r.",
        evidence=Evidence(probe=adapter.utilisation.probe, name=AdapterSpectrum.rank_utilisation.name,
                          n=cuts.measurements, first_step=min(firsts), last_step=max(lasts),
                          value=float(np.median(use))),
        scopes=list(lasting),
    )  # fmt: skip


def _tried_lower(adapter: AdapterTables, tried: TriedRanks, cuts: Cuts) -> Finding | None:
    lower = {scope: best for scope, best in tried.recommended.items() if best < tried.rank.get(scope, best)}
    if tried.parameters > cuts.spare_rank or not lower:
        return None
    counted = Counter(lower.values())
    usual = ", ".join(
        f"r = {rank} for {count(counted[rank], 'module')}" for rank in sorted(counted)[: cuts.names_listed]
    )
    more = len(counted) - cuts.names_listed
    usual += f", and {more} other ranks" if more > 0 else ""
    now = sorted({tried.rank[scope] for scope in lower})
    return Finding(
        kind="adapter_rank_large",
        severity="info",
        title=f"{percent(tried.parameters)} of the adapters' parameters would do"
        + (f", all adapters together, with lower ranks{adapter.title_ending}" if adapter.several else ""),
        detail=f"With {usual} in place of r = {' and '.join(map(str, now))}, the model's outputs on "
        f"{count(tried.examples, 'held-out example')} lose {percent(tried.lost)} of what the adapters do to them (mean "
        f"{'KL' if tried.judged_by == AdapterTruncation.kl.name else 'squared error'}, beside that without adapters).",
        advice="Train with these ranks (rank_pattern), or cut the trained adapter to them. The rank of each module is "
        "`recommended_rank` of AdapterTruncation in this run.",
        evidence=Evidence(probe=tried.probe, name=AdapterTruncation.recommended_parameters.name, n=tried.examples,
                          first_step=tried.step, last_step=tried.step, value=tried.parameters),
        scopes=list(lower),
    )  # fmt: skip


def rank_exhausted(adapter: AdapterTables, cuts: Cuts) -> Finding | None:
    """Modules that use all their directions about evenly; where lower ranks were tried, only those that need all."""
    lasting = _lasting(adapter, cuts, lambda use: use >= cuts.full_rank)
    ranks = dict(zip(adapter.ranks.scopes, adapter.ranks.values[-1], strict=True)) if adapter.ranks else {}
    lasting = {scope: use for scope, use in lasting.items() if ranks.get(scope, 0) >= TELLING_RANK}
    if adapter.tried is not None:
        needed = adapter.tried.recommended
        lasting = {scope: use for scope, use in lasting.items() if needed.get(scope, 0) >= ranks[scope]}
    modules = _measured(adapter)
    if 2 * len(lasting) <= modules or not lasting:
        return None
    use, firsts, lasts = zip(*lasting.values(), strict=True)
    first, last = min(firsts), max(lasts)
    current = " and ".join(num(rank) for rank in sorted({ranks[scope] for scope in lasting}))
    checked = " Every lower rank that was tried loses more than is allowed." if adapter.tried is not None else ""
    return Finding(
        kind="adapter_rank_exhausted",
        severity="info",
        title=f"{count(len(lasting), 'adapted module')} of {modules} use all their directions{adapter.title_ending}",
        detail=f"The effective rank is {percent(min(use))} or more of the rank in "
        f"{listed(list(lasting), cuts.names_listed)}, {between(first, last)}: the update is as wide as its rank "
        f"allows.{checked}",
        advice=f"Try a higher rank (now {current}), and keep it "
        "if the holdout loss falls. Early in training, or with very small updates, noise looks the same.",
        evidence=Evidence(probe=adapter.utilisation.probe, name=AdapterSpectrum.rank_utilisation.name,
                          n=cuts.measurements, first_step=first, last_step=last, value=float(np.median(use))),
        scopes=list(lasting),
    )  # fmt: skip


def _measured(adapter: AdapterTables) -> int:
    """How many modules have a number at the last measurement."""
    return int(np.isfinite(adapter.utilisation.values[-1]).sum()) if adapter.utilisation else 0


def _lasting(
    adapter: AdapterTables, cuts: Cuts, holds: Callable[[Floats], NDArray[np.bool_]]
) -> dict[str, tuple[float, int, int]]:
    """Modules for which it holds in enough measurements to the last: their median use, and first and last step."""
    use = adapter.utilisation
    if not use:
        return {}
    with np.errstate(invalid="ignore"):
        runs = streaks(holds(use.values), np.isfinite(use.values), cuts.measurements)
    return {
        use.scopes[run.column]: (run.median(use.values), int(use.steps[run.rows[0]]), int(use.steps[run.rows[-1]]))
        for run in runs
        if run.lasting
    }
