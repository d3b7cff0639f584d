"""Whether adapters use their rank: too much of it, all of it, none of it, and where the work is done."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from learnscope.findings.adapters.ranks import rank_exhausted, rank_large
from learnscope.findings.registry import analysis
from learnscope.quantities.adapters import AdapterGradients, AdapterSpectrum
from learnscope.reading.adapter_tables import AdapterTables, adapter_tables, layers_of_modules
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import grid, rows
from learnscope.reading.words import between, count, listed, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@analysis(place=120)
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
    steps = adapter.norms.steps[-cuts.measurements :]
    gradients = _without_gradient(adapter, reader, names)
    reason = f" No gradient other than 0 reached {count(len(gradients), 'of them', 'of them')}." if gradients else ""
    return Finding(
        kind="dead_adapters",
        severity="warning",
        title=f"{count(len(names), 'adapted module')} of {len(adapter.norms.scopes)} learned nothing"
        f"{adapter.title_ending}",
        detail=f"The update of {listed(names, cuts.names_listed)} is exactly zero in the last "
        f"{count(len(steps), 'measurement')} ({between(int(steps[0]), int(steps[-1]))}), while "
        f"{count(int((norms[-1] > 0).sum()), 'other module')} moved.{reason}",
        advice="Leave these modules out of target_modules, or find out why the loss does not depend on them (a layer "
        "that is skipped, an adapter that is not active, parameters outside the optimizer).",
        evidence=Evidence(probe=adapter.norms.probe, name=AdapterSpectrum.frobenius_norm.name, n=len(steps),
                          first_step=int(steps[0]), last_step=int(steps[-1]), value=0.0),
        scopes=names,
    )  # fmt: skip


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
        evidence=Evidence(probe=adapter.norms.probe, name=AdapterSpectrum.frobenius_norm.name, n=len(last),
                          first_step=step, last_step=step, value=share),
        scopes=in_order,
    )  # fmt: skip


def _by_layer(norms: Mapping[str, float], reader: RunReader) -> dict[str, float]:
    """Σ‖ΔW‖_F² of each layer, in the model's order."""
    sums: dict[str, float] = {}
    for scope, layer in layers_of_modules(norms, reader).items():
        sums[layer] = sums.get(layer, 0.0) + norms[scope] ** 2
    return sums


def intruders(adapter: AdapterTables, reader: RunReader, cuts: Cuts) -> Finding | None:
    """Leading directions of tuned weights that nothing in the base resembles."""
    counts = grid(reader, AdapterSpectrum.intruder_dimensions, kind="module", adapter=adapter.name)
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
        evidence=Evidence(probe=counts.probe, name=AdapterSpectrum.intruder_dimensions.name,
                          n=int(np.isfinite(last).sum()), first_step=step, last_step=step, value=float(total)),
        scopes=names,
    )  # fmt: skip
