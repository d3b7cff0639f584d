"""How well, how fast and in how much memory an audited model works."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis, not_an_audit
from learnscope.findings.outputs.finished.answers import tasks, weak_classes
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_answers import Quality
from learnscope.reading.audit_numbers import Number, duration, evidence, interval_text, size
from learnscope.reading.cost.audit_cost import Layers, Memory, Speed
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, count, listed, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

NEEDED = {"p95": 59, "p99": 299}
"""Passes that an upper bound of a percentile needs."""


@analysis(place=170, check="performance (audit)", unless=not_an_audit)
def audit_performance(reader: RunReader, cuts: Cuts) -> list[Finding]:
    audit = read_audit(reader)
    findings: list[Finding | None] = []
    if audit.quality is not None:
        findings += [quality(audit.quality), weak_classes(audit.quality)]
    if audit.tasks is not None:
        findings += tasks(audit.tasks)
    if audit.speed is not None and audit.speed.settings:
        findings += [speed(audit.speed), too_few_passes(audit.speed), not_settled(audit.speed)]
    if audit.layers is not None:
        findings.append(slow_layers(audit.layers, cuts))
    if audit.memory is not None:
        findings.append(largest_part(audit.memory, cuts))
    return [finding for finding in findings if finding is not None]


def quality(part: Quality) -> Finding | None:
    if part.loss.value is None:
        return Finding(
            kind="audit_loss_unknown", severity="warning", title=f"The loss is not a number: {part.loss.reason}",
            detail=f"Of {count(part.n_examples or 0, 'example')}, no finite loss came out ({part.loss.reason}).",
            advice="Look for NaN in the weights or the data before anything else here is believed.",
            evidence=evidence(part.probe, "loss", part.n_examples, part.loss),
        )  # fmt: skip
    others = {"perplexity": part.perplexity, "accuracy": part.accuracy}
    others |= {f"top-{k} accuracy": number for k, number in part.top_k.items()}
    also = [f"{name} {interval_text(number)}" for name, number in others.items() if number.value is not None]
    places = f" ({count(part.positions, 'predicted position')})" if part.positions else ""
    detail = f"Loss {interval_text(part.loss)}{part.on}{places}."
    detail += f" Also {listed(also, len(also))}." if also else ""
    return Finding(
        kind="audit_quality", severity="info", detail=detail,
        title=f"The loss is {num(part.loss.value)}{part.on}", advice=OWN_LOSS if part.own_samples else _sure(part.loss),
        evidence=evidence(part.probe, "loss", part.n_examples, part.loss),
    )  # fmt: skip


OWN_LOSS = (
    "It is the model's entropy, how uncertain it is of what it makes up itself, and says nothing about how good it is: "
    "give data for that."
)


def _sure(loss: Number) -> str:
    if loss.interval is None or loss.value is None:
        return "There is no interval, so no difference to another model can be told from chance: give more examples."
    half = (loss.interval[1] - loss.interval[0]) / 2
    return (
        f"A model whose loss on other examples differs by less than {num(half)} cannot be told from this one; four "
        "times as many examples halve that. On the same examples, paired, far smaller differences can be told."
    )


def speed(part: Speed) -> Finding | None:
    """Decoding leads where the model decodes: reading text says little about writing it."""
    main = part.main
    if main.mean.value is None:
        return None
    percentiles = {"median": main.p50, "P95": main.p95, "P99": main.p99}
    latencies = [f"{name} {duration(n.value)}" for name, n in percentiles.items() if n.value is not None]
    timed = [setting for setting in part.settings if setting.rate[0].value is not None]
    alone = part.alone if part.alone in timed else None
    leading = alone if alone is not None and alone.phase == "decode" else main
    rate, unit = leading.rate
    detail = f"At {main.description}: mean latency {duration(main.mean.value)}"
    detail += f", {listed(latencies, 3)}, over {count(main.n or 0, 'pass', 'passes')}." if latencies else "."
    title = f"One forward pass takes {duration(main.mean.value)}"
    title += f", {num(rate.value)} {unit}" if rate.value is not None else ""
    basis = evidence(part.probe, "latency_mean", main.n, main.mean)
    if leading is not main:
        title = f"Decoding makes {num(rate.value or 0)} {unit} ({leading.at})"
        basis = evidence(part.probe, "tokens_per_second", leading.n, rate)
        for phase in ("prefill", "decode"):
            each = [f"{num(s.rate[0].value or 0)} {s.rate[1]} at {s.at}" for s in timed if s.phase == phase]
            detail += f" {capital(phase)}: {listed(each, len(each))}." if each else ""
    fastest = max([s for s in timed if s.phase == leading.phase], key=lambda s: s.rate[0].value or 0.0, default=leading)
    if fastest is not leading and fastest.rate[0].value is not None and rate.value:
        times = fastest.rate[0].value / rate.value
        advice = f"The most throughput, {num(times)} times as much, was measured at {fastest.description}."
    else:
        advice = f"No other of the {count(len(part.settings), 'setting')} measured had more throughput."
    threads = part.notes.get("threads")
    where = f" on {part.notes.get('device', 'cpu')}" + (f", {count(int(threads), 'thread')}" if threads else "")
    return Finding(
        kind="audit_speed", severity="info", title=f"{title}{where}", detail=detail, advice=advice, evidence=basis
    )


def too_few_passes(part: Speed) -> Finding | None:
    main = part.main
    absent = [name for name in NEEDED if getattr(main, name).value is None]
    if not absent or main.n is None:
        return None
    needed = max(NEEDED[name] for name in absent)
    names = listed([name.upper() for name in absent], 2)
    return Finding(
        kind="audit_percentiles_not_measured", severity="info",
        title=f"{names} of the latency cannot be told from {count(main.n, 'pass', 'passes')}",
        detail=f"A bound for {names} that holds in 95 % of cases needs "
        + listed([f"{NEEDED[name]} passes for {name.upper()}" for name in absent], 2) + f"; {main.n:,} were timed.",
        advice=f"Time at least {needed} passes.",
        evidence=Evidence(probe=part.probe, name=f"latency_{absent[-1]}", n=main.n),
    )  # fmt: skip


def not_settled(part: Speed) -> Finding | None:
    if part.notes.get("warm") is not False:
        return None
    n = part.main.n or 0
    return Finding(
        kind="audit_not_warm", severity="warning", title="Latencies had not settled when they were measured",
        detail=f"The rolling median was still moving after the warm-up, before {count(n, 'pass', 'passes')} were timed "
        f"({part.main.description}).",
        advice="Other work on the machine, or a processor that changes its pace, does this: measure again when it is "
        "quiet, before the numbers are compared with any other.",
        evidence=evidence(part.probe, "latency_mean", n, part.main.mean),
    )  # fmt: skip


def slow_layers(part: Layers, cuts: Cuts) -> Finding | None:
    """The layers that take the time, and whether a few of them take most of it."""
    seconds = {name: n.value for name, n in part.layers.items() if n.value is not None}
    over, name = "layer", "total_seconds"
    if len(seconds) <= 1:
        seconds = {name: n.value for name, n in part.modules.items() if n.value is not None}
        over, name = "module", "self_seconds"
    total = part.total.value or sum(seconds.values())
    if len(seconds) < 2 or not total > 0:
        return None
    ordered = sorted(seconds, key=lambda scope: -seconds[scope])
    shares = np.cumsum([seconds[scope] for scope in ordered]) / total
    few = ordered[: int(np.searchsorted(shares, cuts.audit_part_share)) + 1]
    first, median = seconds[ordered[0]], float(np.median(list(seconds.values())))
    share = f"{percent(first / total)} of a forward pass"
    together, n = percent(float(shares[len(few) - 1])), len(seconds)
    if shares[-1] < cuts.audit_part_share:
        advice = f"The {count(n, over)} together take {percent(float(shares[-1]))}: look outside them."
    elif len(few) <= cuts.few_layers * n:
        advice = f"Look at {listed(few, cuts.names_listed)} first: together {together} of the time."
    else:
        advice = f"The time is spread: {len(few)} of {n} take {together}, no single {over} is worth the work."
    return Finding(
        kind="audit_slowest_layer", severity="info", title=f"The slowest {over}, {ordered[0]}, takes {share}",
        detail=f"It takes {duration(first)} of {duration(total)}; the median {over} of {n} takes "
        f"{duration(median)}" + (f", {num(first / median)} times less." if median > 0 else "."),
        advice=advice, scopes=few,
        evidence=Evidence(probe=part.probe, name=name, n=part.n or n, value=first),
    )  # fmt: skip


def largest_part(part: Memory, cuts: Cuts) -> Finding | None:
    sizes = {name: n.value for name, n in part.parts.items() if n.value is not None}
    total, most = sum(sizes.values()), max(sizes.values(), default=0)
    if not total > 0 or most / total < cuts.audit_part_share:
        return None
    largest = max(sizes, key=lambda name: sizes[name])
    others = [f"{PARTS.get(name, name)} {size(n)}" for name, n in sizes.items() if name != largest]
    advice = f"The bits of these weights decide the size: everything else together is {size(total - most)}."
    if largest in ("embedding", "head"):
        advice = (
            f"Quantising the blocks alone cannot make this model smaller than {size(most)}, {num(total / most)} times "
            "smaller at best: quantise these weights too, or use a smaller vocabulary."
        )
    return Finding(
        kind="audit_size_dominated", severity="info",
        title=f"{percent(most / total)} of the model's bytes are {PARTS.get(largest, largest)}",
        detail="; ".join([f"{size(most)} of {size(total)}", *([listed(others, len(others))] if others else [])]) + ".",
        advice=advice,
        evidence=Evidence(probe=part.probe, name="bytes", n=len(sizes), value=most), scopes=[largest],
    )  # fmt: skip


PARTS = {
    "embedding": "embeddings", "attention": "attention", "mlp": "MLPs", "norm": "norms", "head": "the head",
    "other": "other weights",
}  # fmt: skip
