"""Where an audited model could be used: in real time, on edge devices, on servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learnscope.findings import analysis, not_an_audit
from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.findings.robustness.robustness import masked, nothing_to_lose, within
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_numbers import NONE, Number, evidence, size
from learnscope.reading.cost.audit_cost import Running, Setting
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
    """One user waits for one answer: decoding at batch 1, or one example of models that do not decode."""
    alone, more = None if audit.speed is None else audit.speed.alone, ""
    if audit.speed is not None and (read := _fastest(audit.speed.of_phase("prefill"))) is not None:
        more = f" Reading text is another matter: {num(read.rate[0].value or 0)} tokens/s ({read.description})."
    return _judged("real_time", "real-time use here", [_fast(audit, alone, cuts)], more)


def _edge(audit: Audit, cuts: Cuts) -> Finding:
    best, more = recommended_configuration(audit), ""
    running = audit.memory.alone if audit.memory is not None else None
    if best is not None and (packed := best["packed_bytes"].value) is not None:
        total, parts = _summed(packed, running)
        which = "≤" if total <= cuts.audit_memory_bytes else ">"
        more = f" Packed as {best.name}: {size(total)} {which} {size(cuts.audit_memory_bytes)} ({parts})."
    return _judged("edge", "edge devices", [_small(audit, cuts)], more)


def _server(audit: Audit, cuts: Cuts) -> Finding:
    """Servers can fill their batches, and are open to strangers."""
    settings = []
    if audit.speed is not None:
        settings = audit.speed.of_phase("decode") or audit.speed.of_phase("forward")
    demands = [_fast(audit, _fastest(settings) or next(iter(settings), None), cuts), _robust(audit, cuts)]
    return _judged("server", "servers open to strangers", demands)


def _fastest(settings: Sequence[Setting]) -> Setting | None:
    timed = [setting for setting in settings if setting.rate[0].value is not None]
    return max(timed, key=lambda setting: setting.rate[0].value or 0.0, default=None)


def _fast(audit: Audit, setting: Setting | None, cuts: Cuts) -> Demand:
    limit = cuts.audit_tokens_per_second
    cure = f"A smaller model, more threads or other kernels would have to bring {num(limit)}."
    if audit.speed is None or setting is None:
        why = audit.missing.get("speed", "nothing was timed for a single example")
        basis = evidence("InferenceSpeed", "tokens_per_second", 0, NONE)
        return Demand(None, f"speed was not measured ({why})", basis, cure)
    rate, unit = setting.rate
    basis = evidence(audit.speed.probe, unit.replace("/s", "_per_second"), setting.n or 0, rate)
    if rate.value is None:
        return Demand(None, f"speed was not measured ({rate.reason}; {setting.description})", basis, cure)
    low, high = rate.interval or (rate.value, rate.value)
    met = True if low >= limit else False if high < limit else None
    text = f"{num(rate.value)} {unit} {_beside(met, '≥', '<')} {num(limit)} ({setting.description})"
    return Demand(met, text, basis, cure)


def _small(audit: Audit, cuts: Cuts) -> Demand:
    """Weights, cache and activations of one example; never of a batch that the sentence does not name."""
    part, limit = audit.memory, cuts.audit_memory_bytes
    cure = f"Fewer bits, or a smaller model, would have to bring it to {size(limit)}."
    if part is None or part.model_bytes.value is None:
        why = audit.missing.get("memory", "its bytes are not recorded")
        return Demand(None, f"memory was not measured ({why})", evidence("MemoryUse", "model_bytes", 0, NONE), cure)
    weights, running = part.model_bytes.value, part.alone
    if running is None or running.activations.value is None:
        basis, too_large = evidence(part.probe, "model_bytes", 1, Number(weights)), weights > limit
        text = f"weights of {size(weights)} {'>' if too_large else 'beside'} {size(limit)}"
        missing = "not recorded for batch 1" if running is None else running.activations.reason
        text += "" if too_large else f"; cache and activations of one example were not measured ({missing})"
        doubt = "Measure what one example takes to run: MemoryUse(batches=(1,))."
        return Demand(False if too_large else None, text, basis, cure, doubt)
    total, parts = _summed(weights, running)
    basis = evidence(part.probe, "model_bytes + cache_bytes + activation_bytes", 1, Number(total))
    met = total <= limit
    return Demand(met, f"{size(total)} {'≤' if met else '>'} {size(limit)} ({parts})", basis, cure)


def _summed(weights: float, running: Running | None) -> tuple[float, str]:
    """Weights with cache and activations of one example, and each part in words."""
    if running is None or running.activations.value is None:
        return weights, f"weights {size(weights)}; cache and activations were not measured"
    cache, activations = running.cache.value or 0.0, running.activations.value
    kept = f", cache {size(cache)}" if cache else ""
    words = f"weights {size(weights)}{kept}, activations {size(activations)}; {running.where}"
    return weights + cache + activations, words


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


def _judged(name: str, what: str, demands: Sequence[Demand], more: str = "") -> Finding:
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
        advice = (
            "These are numbers of this machine and these inputs: measure where it will run, or give that device's "
            "memory and bandwidth."
        )
    return Finding(
        kind=f"audit_suits_{name}", severity="info", title=f"{title}: {decisive.text}",
        detail=f"{capital('; '.join(demand.text for demand in demands))}.{more}", advice=advice,
        evidence=decisive.evidence,
    )  # fmt: skip
