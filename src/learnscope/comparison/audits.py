"""The numbers of several audits side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from learnscope.comparison.series import SeriesOf
from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.reading.audit import PROBES, Audit, read_audit
from learnscope.reading.audit_numbers import NONE, OWN_SAMPLES, Number, ends_text, size
from learnscope.reading.gather import class_of
from learnscope.reading.words import count, listed, num
from learnscope.run import Run


@dataclass(frozen=True)
class Metric:
    """A number that models are compared by, and whether more of it is better."""

    name: str
    part: str
    get: Callable[[Audit], Number]
    write: Callable[[float], str]
    more_is_better: bool
    cut: str = ""
    unit: str = ""
    scale: float = 1.0
    exact: bool = False
    """Whether it is counted, not measured, and so needs no interval."""


def _throughput(audit: Audit) -> Number:
    return audit.speed.main.rate[0] if audit.speed is not None and audit.speed.settings else NONE


def _packed(audit: Audit) -> Number:
    best = recommended_configuration(audit)
    return NONE if best is None else best["packed_bytes"]


METRICS = (
    Metric("loss", "quality", lambda a: a.quality.loss if a.quality else NONE, num, False),
    Metric("perplexity", "quality", lambda a: a.quality.perplexity if a.quality else NONE, num, False),
    Metric("accuracy", "quality", lambda a: a.quality.accuracy if a.quality else NONE, num, True),
    Metric("throughput", "speed", _throughput, num, True, "audit_tokens_per_second", "a second"),
    Metric("weights", "memory", lambda a: a.memory.model_bytes if a.memory else NONE, size, False,
           "audit_memory_bytes", "MB", 1e6, exact=True),
    Metric("recommended size", "optimum", _packed, size, False, "audit_memory_bytes", "MB", 1e6, exact=True),
    Metric("robustness gap", "attacks", lambda a: a.attacks.gap if a.attacks else NONE, num, False,
           "audit_robustness_gap"),
)  # fmt: skip


def read_audits(runs: Mapping[str, Run], series: Mapping[str, SeriesOf]) -> dict[str, Audit]:
    """The audit of each run; none if no run has an audit's numbers."""
    probes = {class_of(key.probe) for keys in series.values() for key in keys}
    return {} if probes.isdisjoint(PROBES.values()) else {name: read_audit(run.reader) for name, run in runs.items()}


def asked_for(audits: Mapping[str, Audit]) -> tuple[float | None, float | None]:
    """The loss that is accepted and the budget in bytes, as the audits were told."""
    parts = [audit.optimum for audit in audits.values() if audit.optimum is not None]
    allowed = [float(part.notes["allowed"]) for part in parts if part.notes.get("allowed") is not None]
    budgets = [budget for part in parts if (budget := part["budget_bytes"].value) is not None]
    return next(iter(allowed), None), next(iter(budgets), None)


def audit_rows(audits: Mapping[str, Audit]) -> list[tuple[str, ...]]:
    rows = []
    for metric in METRICS:
        numbers = {name: metric.get(audit) for name, audit in audits.items()}
        best = clear_best(numbers, metric) if _same_data(metric, audits) else None
        cells = [_cell(number, metric) + (" ★" if name == best else "") for name, number in numbers.items()]
        rows.append((metric.name, *cells))
    return rows


def audit_json(audits: Mapping[str, Audit]) -> list[dict[str, Any]]:
    """The same as plain values: every model's number of each metric, and the best model if there is a clear one."""
    out = []
    for metric in METRICS if audits else ():
        numbers = {name: metric.get(audit) for name, audit in audits.items()}
        values = {
            name: {"value": n.value, "low": n.low, "high": n.high, "why": n.reason, "no_interval": n.no_interval}
            for name, n in numbers.items()
        }
        best = clear_best(numbers, metric) if _same_data(metric, audits) else None
        out.append({"metric": metric.name, "numbers": values, "best": best})
    return out


def _same_data(metric: Metric, audits: Mapping[str, Audit]) -> bool:
    """False for what depends on the data if a model was examined on sequences that it made up itself."""
    parts = [getattr(audit, metric.part) for audit in audits.values()]
    return metric.part not in ("quality", "attacks") or not any(part is not None and part.own_samples for part in parts)


def _cell(number: Number, metric: Metric) -> str:
    if number.value is None:
        return "n/a" if number.reason in (None, "not recorded") else f"n/a ({number.reason})"
    ends = ends_text(number, metric.write)
    return f"{metric.write(number.value)} ({ends})" if ends else metric.write(number.value)


def clear_best(numbers: Mapping[str, Number], metric: Metric) -> str | None:
    """The model whose interval lies beyond all others'; None if there is none, or if intervals are missing."""
    known = {name: n for name, n in numbers.items() if n.value is not None}
    if len(known) < 2 or not (metric.exact or all(n.interval is not None for n in known.values())):
        return None
    sign = 1 if metric.more_is_better else -1
    best = max(known, key=lambda name: sign * (known[name].value or 0.0))
    spans = {name: n.interval or (n.value or 0.0, n.value or 0.0) for name, n in known.items()}
    near = min(sign * end for end in spans.pop(best))
    return best if all(near > max(sign * end for end in span) for span in spans.values()) else None


def notes(audits: Mapping[str, Audit]) -> list[str]:
    """Why numbers may not be comparable."""
    out = []
    own = [name for name, a in audits.items() if any(p is not None and p.own_samples for p in (a.quality, a.attacks))]
    if own:
        out.append(
            f"{listed(own, len(own))} {'was' if len(own) == 1 else 'were each'} examined on {OWN_SAMPLES}: losses, "
            "accuracies and robustness gaps cannot be compared, and none is marked as the best."
        )
    examples = {name: a.quality.n_examples for name, a in audits.items() if a.quality is not None}
    if len(set(examples.values())) > 1:
        each = [f"{name} on {count(n, 'example') if n is not None else 'n/a'}" for name, n in examples.items()]
        out.append(f"Quality was measured on different data: {listed(each, len(each))}.")
    speeds = {name: a.speed for name, a in audits.items() if a.speed is not None}
    settings = {name: speed.main.description for name, speed in speeds.items() if speed.settings}
    threads = {name: speed.notes.get("threads") for name, speed in speeds.items()}
    if len(set(settings.values())) > 1 or len(set(threads.values())) > 1:
        each = [f"{name} at {setting}, {threads[name]} threads" for name, setting in settings.items()]
        out.append(f"Speed was measured in different settings: {listed(each, len(each))}.")
    return out
