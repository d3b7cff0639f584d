"""Ranks of adapters that are larger than they need be, and ranks that are used up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities.adapters import AdapterSpectrum, AdapterTruncation
from learnscope.reading.adapter_tables import Adapted, Tried
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats
from learnscope.reading.streaks import streaks
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Evidence, Finding

TELLING_RANK = 4
"""Below it, an even use of all directions is what two or three of them often show."""


def rank_large(one: Adapted, cuts: Cuts) -> Finding | None:
    """By ranks that were tried where there are some, else by how few directions the updates use."""
    if one.tried is not None:
        return _tried_lower(one, one.tried, cuts)
    lasting = _lasting(one, cuts, lambda use: use <= cuts.idle_rank)
    modules = int(np.isfinite(one.utilisation.values[-1]).sum()) if one.utilisation else 0
    if 2 * len(lasting) <= modules or not lasting:
        return None
    use = [value for value, _ in lasting.values()]
    steps = [step for _, step in lasting.values()]
    return Finding(
        kind="adapter_rank_large",
        severity="info",
        title=f"{count(len(lasting), 'adapted module')} of {modules} use few of their directions{one.said}",
        detail=f"The effective rank is {percent(min(use))} to {percent(max(use))} of the rank in "
        f"{listed(list(lasting), cuts.names_listed)}, in at least {count(cuts.measurements, 'measurement')} to step "
        f"{max(last for _, last in steps):,}. A lower rank has not been tried.",
        advice="Add AdapterTruncation with holdout= to have lower ranks tried, or train with a smaller r.",
        evidence=Evidence(probe=one.utilisation.probe, name=AdapterSpectrum.rank_utilisation.name, n=cuts.measurements,
                          first_step=min(first for first, _ in steps), last_step=max(last for _, last in steps),
                          value=float(np.median(use))),
        scopes=list(lasting),
    )  # fmt: skip


def _tried_lower(one: Adapted, tried: Tried, cuts: Cuts) -> Finding | None:
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
        + (f", all adapters together, with lower ranks{one.said}" if one.several else ""),
        detail=f"With {usual} in place of r = {' and '.join(map(str, now))}, the model's outputs on "
        f"{count(tried.examples, 'held-out example')} lose {percent(tried.lost)} of what the adapters do to them (mean "
        f"{'KL' if tried.judged_by == AdapterTruncation.kl.name else 'squared error'}, beside that without adapters).",
        advice="Train with these ranks (rank_pattern), or cut the trained adapter to them. The rank of each module is "
        "`recommended_rank` of AdapterTruncation in this run.",
        evidence=Evidence(probe=tried.probe, name=AdapterTruncation.recommended_parameters.name, n=tried.examples,
                          first_step=tried.step, last_step=tried.step, value=tried.parameters),
        scopes=list(lower),
    )  # fmt: skip


def rank_exhausted(one: Adapted, cuts: Cuts) -> Finding | None:
    """Modules that use all their directions about evenly; where lower ranks were tried, only those that need all."""
    lasting = _lasting(one, cuts, lambda use: use >= cuts.full_rank)
    ranks = dict(zip(one.ranks.scopes, one.ranks.values[-1], strict=True)) if one.ranks else {}
    lasting = {scope: found for scope, found in lasting.items() if ranks.get(scope, 0) >= TELLING_RANK}
    if one.tried is not None:
        need = one.tried.recommended
        lasting = {scope: found for scope, found in lasting.items() if need.get(scope, 0) >= ranks[scope]}
    modules = int(np.isfinite(one.utilisation.values[-1]).sum()) if one.utilisation else 0
    if 2 * len(lasting) <= modules or not lasting:
        return None
    use = [value for value, _ in lasting.values()]
    spans = [span for _, span in lasting.values()]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    held = " and ".join(num(rank) for rank in sorted({ranks[scope] for scope in lasting}))
    checked = " Every lower rank that was tried loses more than is allowed." if one.tried is not None else ""
    return Finding(
        kind="adapter_rank_exhausted",
        severity="info",
        title=f"{count(len(lasting), 'adapted module')} of {modules} use all their directions{one.said}",
        detail=f"The effective rank is {percent(min(use))} or more of the rank in "
        f"{listed(list(lasting), cuts.names_listed)}, {between(first, last)}: the update is as wide as its rank "
        f"allows.{checked}",
        advice=f"Try a higher rank (now {held}), and keep it "
        "if the holdout loss falls. Early in training, or with very small updates, noise looks the same.",
        evidence=Evidence(probe=one.utilisation.probe, name=AdapterSpectrum.rank_utilisation.name, n=cuts.measurements,
                          first_step=first, last_step=last, value=float(np.median(use))),
        scopes=list(lasting),
    )  # fmt: skip


def _lasting(
    one: Adapted, cuts: Cuts, holds: Callable[[Floats], NDArray[np.bool_]]
) -> dict[str, tuple[float, tuple[int, int]]]:  # fmt: skip
    """Modules for which it holds in enough measurements to the last: their median use, and first and last step."""
    found = one.utilisation
    if not found:
        return {}
    measured = np.isfinite(found.values)
    with np.errstate(invalid="ignore"):
        held = streaks(holds(found.values), measured, cuts.measurements)
    return {
        found.scopes[streak.column]: (
            streak.median(found.values), (int(found.steps[streak.rows[0]]), int(found.steps[streak.rows[-1]])),
        )
        for streak in held
        if streak.lasting
    }  # fmt: skip
