"""Where an audited model could be used: in real time, on edge devices, on servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learnscope.findings import analysis, not_an_audit
from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.findings.robustness.robustness import masked, nothing_to_lose, within
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_numbers import NONE, Number, evidence, size
from learnscope.reading.audit_parts import Setting
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, listed, num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Demand:
    """One requirement of a scenario. `met` is None if it is not known, and `text` then has the reason."""

    met: bool | None
    text: str
    evidence: Evidence
    cure: str
    doubt: str = "Measure more, so that the interval shrinks."
    """What to do if it was measured but is not clear."""


@analysis(place=200, check="deployment (audit)", unless=not_an_audit)
def audit_deployment(reader: RunReader, cuts: Cuts) -> list[Finding]:
    audit = read_audit(reader)
    if not audit:
        return []
    return [_real_time(audit, cuts), _edge(audit, cuts), _server(audit, cuts)]


def _real_time(audit: Audit, cuts: Cuts) -> Finding:
    settings, limit = [] if audit.speed is None else audit.speed.settings, cuts.audit_tokens_per_second
    main = audit.speed.main if audit.speed is not None and settings else None
    decode = next((setting for setting in settings if setting.phase == "decode"), None)
    more, caution = "", ""
    if decode is not None and (rate := decode.tokens_per_second.value) is not None:
        above = main is not None and (main.rate[0].value or 0.0) >= limit
        more = f" Writing text, token by token, makes {num(rate)} tokens/s ({decode.description})"
        more += ", below that number." if rate < limit else ", also above that number." if above else "."
        caution = "It suits reading text; writing it is slower than asked for. " if rate < limit else ""
    return _judged("real_time", "real-time use", [_fast(audit, main, cuts)], more, caution)


def _edge(audit: Audit, cuts: Cuts) -> Finding:
    best, more = recommended_configuration(audit), ""
    run = audit.memory.run_bytes.value if audit.memory is not None else None
    if best is not None and (packed := best["packed_bytes"].value) is not None:
        total = packed + (run or 0.0)
        which = "at most" if total <= cuts.audit_memory_bytes else "more than"
        also = " with what running takes" if run is not None else " without what running takes, which was not measured"
        more = f" Packed as {best.name}, it is {size(total)}{also}: {which} {size(cuts.audit_memory_bytes)}."
    return _judged("edge", "edge devices", [_small(audit, cuts)], more)


def _server(audit: Audit, cuts: Cuts) -> Finding:
    """Servers can fill their batches, and are open to strangers."""
    settings = [s for s in audit.speed.settings if s.phase == "forward"] if audit.speed is not None else []
    fastest = max(settings, key=lambda setting: setting.rate[0].value or 0.0, default=None)
    demands = [_fast(audit, fastest, cuts), _robust(audit, cuts)]
    return _judged("server", "servers open to strangers", demands)


def _fast(audit: Audit, setting: Setting | None, cuts: Cuts) -> Demand:
    limit = cuts.audit_tokens_per_second
    cure = f"A smaller model, more threads or other kernels would have to bring {num(limit)}."
    if audit.speed is None or setting is None:
        why = audit.missing.get("speed", "no setting was timed")
        basis = evidence("InferenceSpeed", "tokens_per_second", 0, NONE)
        return Demand(None, f"speed was not measured ({why})", basis, cure)
    rate, unit = setting.rate
    basis = evidence(audit.speed.probe, unit.replace("/s", "_per_second"), setting.n or 0, rate)
    if rate.value is None:
        return Demand(None, f"speed was not measured ({rate.reason})", basis, cure)
    low, high = rate.interval or (rate.value, rate.value)
    met = True if low >= limit else False if high < limit else None
    text = f"{num(rate.value)} {unit} {_beside(met, '≥', '<')} {num(limit)} ({setting.description})"
    return Demand(met, text, basis, cure)


def _small(audit: Audit, cuts: Cuts) -> Demand:
    part, limit = audit.memory, cuts.audit_memory_bytes
    cure = f"Fewer bits, or a smaller model, would have to bring it to {size(limit)}."
    if part is None or part.model_bytes.value is None:
        why = audit.missing.get("memory", "its bytes are not recorded")
        return Demand(None, f"memory was not measured ({why})", evidence("MemoryUse", "model_bytes", 0, NONE), cure)
    weights, run = part.model_bytes.value, part.run_bytes.value
    if run is None:
        basis, too_large = evidence(part.probe, "model_bytes", 1, Number(weights)), weights > limit
        text = f"weights of {size(weights)} {'>' if too_large else 'beside'} {size(limit)}"
        text += "" if too_large else f"; what running takes was not measured ({part.run_bytes.reason})"
        doubt = "Measure what running takes, in a process that has the memory."
        return Demand(False if too_large else None, text, basis, cure, doubt)
    basis = evidence(part.probe, "model_bytes + run_bytes", 1, Number(weights + run))
    met = weights + run <= limit
    text = f"{size(weights + run)} {'≤' if met else '>'} {size(limit)} (weights {size(weights)}, running {size(run)})"
    return Demand(met, text, basis, cure)


def _robust(audit: Audit, cuts: Cuts) -> Demand:
    part, limit = audit.attacks, cuts.audit_robustness_gap
    cure = "Check inputs before the model sees them, or train it on attacked ones."
    if part is not None and part.notes.get("target") == "embeddings":
        return _robust_prompts(audit, limit)
    if part is None or part.gap.value is None:
        why = audit.missing.get("attacks") or (part.gap.reason if part is not None else "not recorded")
        return Demand(
            None, f"robustness was not measured ({why})", evidence("Attacks", "robustness_gap", 0, NONE), cure
        )
    basis, gap = evidence(part.probe, "robustness_gap", part.examples or 1, part.gap), num(part.gap.value)
    if (nothing := nothing_to_lose(part, cuts)) is not None:
        doubt = "Attack data that the model is good at."
        return Demand(None, f"robustness gap {gap} says nothing: {nothing}", basis, cure, doubt)
    met = within(part.gap, limit)
    text = f"robustness gap {gap} {_beside(met, '≤', '>')} {num(limit)}"
    if met and masked(part, cuts) is not None:
        doubt = "Attack with more steps and restarts, until the attacks can be believed."
        return Demand(None, f"{text}, but gradient masking is suspected", basis, cure, doubt)
    return Demand(met, text, basis, cure)


def _beside(met: bool | None, yes: str, no: str) -> str:
    return yes if met else no if met is False else "within its interval of"


def _robust_prompts(audit: Audit, limit: float) -> Demand:
    """A language model is judged by what anybody could send: no text makes the attacks on its embeddings."""
    cure = "Clean prompts before the model sees them, or train it on such ones."
    worst = None if audit.prompts is None else audit.prompts.worst
    if worst is None or audit.prompts is None or worst.accuracy_change.value is None:
        why = audit.missing.get("prompts") or (audit.prompts.reason if audit.prompts is not None else "not recorded")
        nothing = evidence("PromptPerturbation", "accuracy_change", 0, NONE)
        return Demand(None, f"what changed prompts do was not measured ({why})", nothing, cure)
    change = worst.accuracy_change
    lost = Number(-(change.value or 0.0), *((-change.interval[1], -change.interval[0]) if change.interval else ()))
    met, basis = within(lost, limit), evidence(audit.prompts.probe, "accuracy_change", audit.prompts.examples, change)
    cost = f"changed prompts ({worst.name}) cost {num(lost.value or 0.0)} of accuracy"
    text = f"{cost} {_beside(met, '≤', '>')} {num(limit)}"
    return Demand(met, text, basis, cure)


def _judged(name: str, what: str, demands: Sequence[Demand], more: str = "", caution: str = "") -> Finding:
    """Suits if all demands are met, does not if any is not met; otherwise it is not known."""
    unmet = [demand for demand in demands if demand.met is False]
    unknown = [demand for demand in demands if demand.met is None]
    unmeasured = [demand.evidence.probe for demand in unknown if demand.evidence.value is None]
    decisive = (unmet or unknown or list(demands))[0]
    if unmet:
        title, advice = f"Does not suit {what}", " ".join(demand.cure for demand in unmet)
    elif unmeasured:
        title, advice = f"Not judged for {what}", f"Run what measures it: {listed(unmeasured, 3)}."
    elif unknown:
        title, advice = f"Whether it suits {what} cannot be told", " ".join(demand.doubt for demand in unknown)
    else:
        title = f"Suits {what}"
        advice = f"{caution}These are numbers of this machine and these inputs: measure where it runs."
    return Finding(
        kind=f"audit_suits_{name}", severity="info", title=f"{title}: {decisive.text}",
        detail=f"{capital('; '.join(demand.text for demand in demands))}.{more}", advice=advice,
        evidence=decisive.evidence,
    )  # fmt: skip
