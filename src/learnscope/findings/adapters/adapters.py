"""Whether adapters use their rank: too much of it, all of it, none of it, and where the work is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.adapters import AdapterGradients, AdapterSpectrum, AdapterTruncation
from learnscope.reading.adapter_tables import AdapterTables, TriedRanks, adapter_tables, layers_of_modules
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, grid, labels_of, rows
from learnscope.reading.streaks import streaks
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader


def _no_adapters(reader: RunReader) -> str | None:
    return None if labels_of(reader, AdapterSpectrum) else "no adapters were followed in this run"


@analysis(place=120, check="adapters", unless=_no_adapters)
def adapters(reader: RunReader, cuts: Cuts) -> list[Finding]:
    findings: list[Finding | None] = []
    for adapter in adapter_tables(reader):
        findings += [dead(adapter, reader, cuts), rank_large(adapter, cuts), rank_exhausted(adapter, cuts)]
        findings += [working(adapter, reader, cuts), intruders(adapter, reader, cuts)]
    return [finding for finding in findings if finding is not None]


def dead(adapter: AdapterTables, reader: RunReader, cuts: Cuts) -> Finding | None:
    """Modules whose update is exactly zero while others move."""
    norms = adapter.norms.values[-cuts.measurements :]
    if len(norms) < cuts.measurements or not (norms[-1] > 0).any():
        return None
    names = [scope for scope, column in zip(adapter.norms.scopes, norms.T, strict=True) if (column == 0).all()]
    if not names:
        return None
    steps = adapter.norms.steps[-cuts.measurements :].tolist()
    gradients = _without_gradient(adapter, reader, names)
    reason = f" No gradient other than 0 reached {count(len(gradients), 'of them', 'of them')}." if gradients else ""
    return Finding(
        kind="dead_adapters",
        severity="warning",
        title=f"{count(len(names), 'adapted module')} of {len(adapter.norms.scopes)} learned nothing"
        f"{adapter.title_ending}",
        detail=f"The update of {listed(names, cuts.names_listed)} is exactly zero in the last "
        f"{count(len(steps), 'measurement')} ({between(steps[0], steps[-1])}), while "
        f"{count(int((norms[-1] > 0).sum()), 'other module')} moved.{reason}",
        advice="Leave these modules out of target_modules, or find out why the loss does not depend on them (a layer "
        "that is skipped, an adapter that is not active, parameters outside the optimizer).",
        evidence=evidence_over(steps, adapter.norms.probe, AdapterSpectrum.frobenius_norm, len(steps), 0.0),
        scopes=names,
    )


def _without_gradient(adapter: AdapterTables, reader: RunReader, names: list[str]) -> list[str]:
    frame = rows(reader, AdapterGradients.norm, kind="module", stage="stepped", adapter=adapter.name)
    if frame.empty:
        return []
    largest = frame.groupby("scope")["value"].max()
    return [name for name in names if name in largest.index and largest[name] == 0]


def working(adapter: AdapterTables, reader: RunReader, cuts: Cuts) -> Finding | None:
    """The few layers that hold most of what all updates add."""
    last = dict(zip(adapter.norms.scopes, adapter.norms.values[-1], strict=True)) if adapter.norms else {}
    layers = _by_layer({scope: norm for scope, norm in last.items() if np.isfinite(norm)}, reader)
    total = sum(layers.values())
    if len(layers) < cuts.work_layers or not total > 0:
        return None
    ordered = sorted(layers, key=lambda layer: -layers[layer])
    shares = np.cumsum([layers[layer] for layer in ordered]) / total
    few = ordered[: int(np.searchsorted(shares, cuts.work_share)) + 1]
    if len(few) > cuts.few_layers * len(layers):
        return None
    step, share = int(adapter.norms.steps[-1]), float(shares[len(few) - 1])
    in_order = [layer for layer in layers if layer in few]
    return Finding(
        kind="layers_that_do_the_work",
        severity="info",
        title=f"{count(len(few), 'layer')} of {len(layers)} {'does' if len(few) == 1 else 'do'} {percent(share)} of "
        f"the work{adapter.title_ending}",
        detail=f"At step {step:,}, {listed(in_order, cuts.names_listed)} hold {percent(share)} of Σ‖ΔW‖_F² over all "
        f"adapted modules.",
        advice="An adapter on these layers alone (layers_to_transform) may do as well with fewer parameters; or give "
        "them a higher rank (rank_pattern).",
        evidence=evidence_over([step], adapter.norms.probe, AdapterSpectrum.frobenius_norm, len(last), share),
        scopes=in_order,
    )


def _by_layer(norms: Mapping[str, float], reader: RunReader) -> dict[str, float]:
    """Σ‖ΔW‖_F² of each layer, in the model's order."""
    sums: dict[str, float] = {}
    for scope, layer in layers_of_modules(norms, reader).items():
        sums[layer] = sums.get(layer, 0.0) + norms[scope] ** 2
    return sums


def intruders(adapter: AdapterTables, reader: RunReader, cuts: Cuts) -> Finding | None:
    """Leading directions of tuned weights that nothing in the base resembles."""
    quantity = AdapterSpectrum.intruder_dimensions
    counts = grid(reader, quantity, kind="module", adapter=adapter.name)
    last = counts.values[-1] if counts else np.zeros(0)
    names = [scope for scope, number in zip(counts.scopes, last, strict=True) if number > 0]
    if not names:
        return None
    step, total = int(counts.steps[-1]), int(np.nansum(last))
    return Finding(
        kind="intruder_dimensions",
        severity="info",
        title=f"{count(len(names), 'tuned weight')} {'has' if len(names) == 1 else 'have'} directions that the base "
        f"did not have{',' if adapter.several else ''}{adapter.title_ending}",
        detail=f"At step {step:,}, {count(total, 'leading singular vector')} of {listed(names, cuts.names_listed)} "
        f"{'is' if total == 1 else 'are'} unlike every singular vector of the weight before tuning: intruder "
        "dimensions (arXiv 2410.21228), which go with forgetting what the base knew.",
        advice="Compare the model with its base on data that it was not tuned on; a lower learning rate, a higher rank "
        "or rsLoRA's scaling make intruders rarer.",
        evidence=evidence_over([step], counts.probe, quantity, int(np.isfinite(last).sum()), float(total)),
        scopes=names,
    )


TELLING_RANK = 4
"""Below this rank, two or three directions are often used evenly by chance."""


def rank_large(adapter: AdapterTables, cuts: Cuts) -> Finding | None:
    """Judged by the ranks that were tried, if any, else by how few directions the updates use."""
    if adapter.tried is not None:
        return _tried_lower(adapter, adapter.tried, cuts)
    lasting = _lasting(adapter, cuts, lambda use: use <= cuts.idle_rank)
    modules = _measured(adapter)
    if 2 * len(lasting) <= modules or not lasting:
        return None
    use, firsts, lasts = zip(*lasting.values(), strict=True)
    span, quantity = (min(firsts), max(lasts)), AdapterSpectrum.rank_utilisation
    return Finding(
        kind="adapter_rank_large",
        severity="info",
        title=f"{count(len(lasting), 'adapted module')} of {modules} use few of their directions{adapter.title_ending}",
        detail=f"The effective rank is {percent(min(use))} to {percent(max(use))} of the rank in "
        f"{listed(list(lasting), cuts.names_listed)}, in at least {count(cuts.measurements, 'measurement')} to step "
        f"{span[1]:,}. A lower rank has not been tried.",
        advice="Add AdapterTruncation with holdout= to have lower ranks tried, or train with a smaller r.",
        evidence=evidence_over(span, adapter.utilisation.probe, quantity, cuts.measurements, float(np.median(use))),
        scopes=list(lasting),
    )


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
    now, quantity = sorted({tried.rank[scope] for scope in lower}), AdapterTruncation.recommended_parameters
    return Finding(
        kind="adapter_rank_large",
        severity="info",
        title=f"{percent(tried.parameters)} of the adapters' parameters would suffice"
        + (f", all adapters together, with lower ranks{adapter.title_ending}" if adapter.several else ""),
        detail=f"With {usual} in place of r = {' and '.join(map(str, now))}, the model's outputs on "
        f"{count(tried.examples, 'held-out example')} lose {percent(tried.lost)} of what the adapters do to them (mean "
        f"{'KL' if tried.judged_by == AdapterTruncation.kl.name else 'squared error'}, beside that without adapters).",
        advice="Train with these ranks (rank_pattern), or cut the trained adapter to them. The rank of each module is "
        "`recommended_rank` of AdapterTruncation in this run.",
        evidence=evidence_over([tried.step], tried.probe, quantity, tried.examples, tried.parameters),
        scopes=list(lower),
    )


def rank_exhausted(adapter: AdapterTables, cuts: Cuts) -> Finding | None:
    """Modules that use all their directions about evenly; if lower ranks were tried, only those that need them all."""
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
    span, quantity = (min(firsts), max(lasts)), AdapterSpectrum.rank_utilisation
    current = " and ".join(num(rank) for rank in sorted({ranks[scope] for scope in lasting}))
    checked = " Every lower rank that was tried loses more than is allowed." if adapter.tried is not None else ""
    return Finding(
        kind="adapter_rank_exhausted",
        severity="info",
        title=f"{count(len(lasting), 'adapted module')} of {modules} use all their directions{adapter.title_ending}",
        detail=f"The effective rank is {percent(min(use))} or more of the rank in "
        f"{listed(list(lasting), cuts.names_listed)}, {between(*span)}: the update is as wide as its rank "
        f"allows.{checked}",
        advice=f"Try a higher rank (now {current}), and keep it "
        "if the holdout loss falls. Early in training, or with very small updates, noise looks the same.",
        evidence=evidence_over(span, adapter.utilisation.probe, quantity, cuts.measurements, float(np.median(use))),
        scopes=list(lasting),
    )


def _measured(adapter: AdapterTables) -> int:
    """How many modules have a number at the last measurement."""
    return int(np.isfinite(adapter.utilisation.values[-1]).sum()) if adapter.utilisation else 0


def _lasting(
    adapter: AdapterTables, cuts: Cuts, holds: Callable[[Floats], NDArray[np.bool_]]
) -> dict[str, tuple[float, int, int]]:
    """Modules for which it holds in enough of the last measurements: their median use, and first and last step."""
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
