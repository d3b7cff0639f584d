"""Where an audited model could be used: in real time, on edge devices, on servers. Judged by cuts, not by habit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.findings.registry import analysis
from learnscope.findings.robustness.robustness import masked, nothing_to_lose, within
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_numbers import NONE, Number
from learnscope.reading.audit_parts import Setting
from learnscope.reading.audit_words import size
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, listed, num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Demand:
    """One thing that a scenario asks for. `met` is None if it cannot be told, and `said` then has the reason."""

    met: bool | None
    said: str
    probe: str
    name: str
    n: int
    number: Number
    cure: str
    doubt: str = "Measure more, so that the interval shrinks."
    """What to do where it is measured and cannot be told."""


@analysis(place=200)
def audit_deployment(reader: RunReader, cuts: Cuts) -> list[Finding]:
    audit = read_audit(reader)
    if not audit:
        return []
    return [_real_time(audit, cuts), _edge(audit, cuts), _server(audit, cuts)]


def _real_time(audit: Audit, cuts: Cuts) -> Finding:
    main = audit.speed.main if audit.speed is not None and audit.speed.settings else None
    decode = [one for one in audit.speed.settings if one.phase == "decode"] if audit.speed is not None else []
    more, caution = "", ""
    if decode and decode[0].tokens_per_second.value is not None:
        rate = decode[0].tokens_per_second.value
        below = rate < cuts.audit_tokens_per_second
        more = f" Writing text, token by token, makes {num(rate)} tokens/s ({decode[0].said})"
        more += ", below that number." if below else ", also above that number." if _is_above(main, cuts) else "."
        caution = "It suits reading text; writing it is slower than asked for. " if below else ""
    return _judged("real_time", "real-time use", [_fast(audit, main, cuts)], more, caution)


def _is_above(setting: Setting | None, cuts: Cuts) -> bool:
    rate = None if setting is None else setting.rate[0].value
    return rate is not None and rate >= cuts.audit_tokens_per_second


def _edge(audit: Audit, cuts: Cuts) -> Finding:
    packed = recommended_configuration(audit)
    more = ""
    run = audit.memory.run_bytes.value if audit.memory is not None else None
    if packed is not None and packed["packed_bytes"].value is not None:
        total = packed["packed_bytes"].value + (run or 0.0)
        which = "at most" if total <= cuts.audit_memory_bytes else "more than"
        also = " with what running takes" if run is not None else " without what running takes, which was not measured"
        more = f" Packed as {packed.name}, it is {size(total)}{also}: {which} {size(cuts.audit_memory_bytes)}."
    return _judged("edge", "edge devices", [_small(audit, cuts)], more)


def _server(audit: Audit, cuts: Cuts) -> Finding:
    """Servers may fill their batches, and are open to strangers."""
    settings = [one for one in audit.speed.settings if one.phase == "forward"] if audit.speed is not None else []
    fastest = max(settings, key=lambda one: one.rate[0].value or 0.0, default=None)
    demands = [_fast(audit, fastest, cuts), _robust(audit, cuts)]
    return _judged("server", "servers open to strangers", demands)


def _fast(audit: Audit, setting: Setting | None, cuts: Cuts) -> Demand:
    cure = f"A smaller model, more threads or other kernels would have to bring {num(cuts.audit_tokens_per_second)}."
    if audit.speed is None or setting is None:
        why = audit.missing.get("speed", "no setting was timed")
        return Demand(None, f"speed was not measured ({why})", "InferenceSpeed", "tokens_per_second", 0, NONE, cure)
    rate, unit = setting.rate
    name = unit.replace("/s", "_per_second")
    if rate.value is None:
        said = f"speed was not measured ({rate.why})"
        return Demand(None, said, audit.speed.probe, name, setting.n or 0, rate, cure)
    low, high = rate.interval or (rate.value, rate.value)
    limit = cuts.audit_tokens_per_second
    met = True if low >= limit else False if high < limit else None
    said = f"{num(rate.value)} {unit} {_beside(met, '≥', '<')} {num(limit)} ({setting.said})"
    return Demand(met, said, audit.speed.probe, name, setting.n or 0, rate, cure)


def _small(audit: Audit, cuts: Cuts) -> Demand:
    part, limit = audit.memory, cuts.audit_memory_bytes
    cure = f"Fewer bits, or a smaller model, would have to bring it to {size(limit)}."
    if part is None or part.model_bytes.value is None:
        why = audit.missing.get("memory", "its bytes are not recorded")
        return Demand(None, f"memory was not measured ({why})", "MemoryUse", "model_bytes", 0, NONE, cure)
    weights, run = part.model_bytes.value, part.run_bytes.value
    if run is None:
        met = False if weights > limit else None
        said = f"weights of {size(weights)} {'>' if met is False else 'beside'} {size(limit)}"
        said += "" if met is False else f"; what running takes was not measured ({part.run_bytes.why})"
        doubt = "Measure what running takes, in a process that has the memory."
        return Demand(met, said, part.probe, "model_bytes", 1, Number(weights), cure, doubt)
    met = weights + run <= limit
    said = f"{size(weights + run)} {'≤' if met else '>'} {size(limit)} (weights {size(weights)}, running {size(run)})"
    return Demand(met, said, part.probe, "model_bytes + run_bytes", 1, Number(weights + run), cure)


def _robust(audit: Audit, cuts: Cuts) -> Demand:
    part, limit = audit.attacks, cuts.audit_robustness_gap
    cure = "Check inputs before the model sees them, or train it on attacked ones."
    if part is None or part.gap.value is None:
        why = audit.missing.get("attacks") or (part.gap.why if part is not None else "not recorded")
        return Demand(None, f"robustness was not measured ({why})", "Attacks", "robustness_gap", 0, NONE, cure)
    if (nothing := nothing_to_lose(part, cuts)) is not None:
        why = f"robustness gap {num(part.gap.value)} says nothing: {nothing}"
        doubt = "Attack data that the model is good at."
        return Demand(None, why, part.probe, "robustness_gap", part.examples or 1, part.gap, cure, doubt)
    met = within(part.gap, limit)
    said = f"robustness gap {num(part.gap.value)} {_beside(met, '≤', '>')} {num(limit)}"
    if met and masked(part, cuts) is not None:
        met, said = None, f"{said}, but gradient masking is suspected"
        doubt = "Attack with more steps and restarts, until the attacks can be believed."
        return Demand(met, said, part.probe, "robustness_gap", part.examples or 1, part.gap, cure, doubt)
    return Demand(met, said, part.probe, "robustness_gap", part.examples or 1, part.gap, cure)


def _beside(met: bool | None, yes: str, no: str) -> str:
    return yes if met else no if met is False else "within its interval of"


def _judged(name: str, what: str, demands: Sequence[Demand], more: str = "", caution: str = "") -> Finding:
    """Suits if all is met, does not if anything is not; in between, what is not known decides."""
    unmet = [one for one in demands if one.met is False]
    unknown = [one for one in demands if one.met is None]
    unmeasured = [one for one in unknown if one.number.value is None]
    leading = (unmet or unknown or list(demands))[0]
    if unmet:
        title, advice = f"Does not suit {what}", " ".join(one.cure for one in unmet)
    elif unmeasured:
        title, advice = f"Not judged for {what}", f"Run what measures it: {listed([o.probe for o in unmeasured], 3)}."
    elif unknown:
        title, advice = f"Whether it suits {what} cannot be told", " ".join(one.doubt for one in unknown)
    else:
        title, advice = (
            f"Suits {what}",
            f"{caution}These are numbers of this machine and these inputs: measure where it runs.",
        )
    return Finding(
        kind=f"audit_suits_{name}", severity="info", title=f"{title}: {leading.said}",
        detail=f"{capital('; '.join(one.said for one in demands))}.{more}", advice=advice,
        evidence=Evidence(probe=leading.probe, name=leading.name, n=leading.n, value=leading.number.value,
                          interval=leading.number.interval),
    )  # fmt: skip
