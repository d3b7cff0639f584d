"""What a device of given memory, bandwidth and operations a second could do with an audited model, by the roofline."""

from __future__ import annotations

from learnscope.findings import analysis, not_an_audit
from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_numbers import duration, size
from learnscope.reading.cost.audit_cost import Running
from learnscope.reading.cost.roofline import Bound, Device, decoded, prefilled, target_device
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

LIMITS = {"memory": "its memory's bandwidth is the limit", "operations": "its operations are the limit"}


def _no_device(reader: RunReader) -> str | None:
    return not_an_audit(reader) or (None if target_device(reader) else "no device was described")


@analysis(place=201, check="a device's numbers (audit)", unless=_no_device)
def audit_device(reader: RunReader, cuts: Cuts) -> list[Finding]:
    audit, device = read_audit(reader), target_device(reader)
    if device is None or audit.memory is None or audit.memory.model_bytes.value is None:
        return []
    return [_judged(audit, device, audit.memory.model_bytes.value, cuts)]


def _judged(audit: Audit, device: Device, weights: float, cuts: Cuts) -> Finding:
    part = audit.memory
    assert part is not None
    running = part.alone
    cache = (running.cache.value or 0.0) if running is not None else 0.0
    read = part.read_bytes.value if part.read_bytes.value is not None else weights
    parameters = part.read_parameters.value or part.parameters.value or 0.0
    said, verdicts = [], []
    if device.memory_bytes is not None:
        fits, text = _fits(device.memory_bytes, weights, running)
        said.append(text)
        verdicts.append(f"{'it fits' if fits else 'it does not fit'} {size(device.memory_bytes)}")
    token = decoded(device, read, cache, parameters) if cache else None
    if token is not None:
        rate, least = 1 / token.seconds, cuts.audit_tokens_per_second
        verdicts.append(f"decoding at most {num(rate)} tokens/s {'≥' if rate >= least else '<'} {num(least)} (batch 1)")
        said.append(_decode_words(device, token, read, cache, running, parameters))
        said += _packed_words(audit, device, cache, parameters)
    if running is not None and running.length:
        whole = prefilled(device, read, parameters, running.length)
        if whole is not None:
            said.append(
                f"Reading {running.length} tokens takes at least {duration(whole.seconds)}: 2 × {num(parameters)} "
                f"parameters × {running.length} operations at {num((device.flops_per_second or 0) / 1e12)} TFLOP/s; "
                f"{LIMITS[whole.limit]}."
            )
    value, name = (1 / token.seconds, "read_bytes + cache_bytes") if token is not None else (weights, "model_bytes")
    return Finding(
        kind="audit_suits_device", severity="info",
        title=f"On the device described, computed and not measured: {'; '.join(verdicts) or 'nothing can be said'}",
        detail=" ".join(said) or "Neither memory nor bandwidth were given with anything that they bound.",
        advice="These are bounds by the roofline, max(bytes / bandwidth, operations / peak): real kernels reach a part "
        "of them. Time it on the device before it is decided on.",
        evidence=Evidence(probe=part.probe, name=name, n=1, value=value),
    )  # fmt: skip


def _fits(memory: float, weights: float, running: Running | None) -> tuple[bool, str]:
    parts, total, where = [f"weights {size(weights)}"], weights, ""
    if running is not None and running.activations.value is not None:
        cache = running.cache.value or 0.0
        parts += ([f"cache {size(cache)}"] if cache else []) + [f"activations {size(running.activations.value)}"]
        total, where = weights + cache + running.activations.value, f" at {running.where}"
    fits = total <= memory
    return fits, f"{' + '.join(parts)}{where} are {size(total)}, {'within' if fits else 'more than'} {size(memory)}."


def _decode_words(
    device: Device, token: Bound, read: float, cache: float, running: Running | None, parameters: float
) -> str:
    after = f" (after {running.length} tokens)" if running is not None else ""
    at = f"{num((device.bytes_per_second or 0) / 1e9)} GB/s"
    more = f" and makes 2 × {num(parameters)} operations" if token.limit == "operations" else ""
    return (
        f"One decoded token reads {size(read)} of weights and {size(cache)} of cache{after}{more}: at least "
        f"{duration(token.seconds)} at {at}; {LIMITS[token.limit]}."
    )


def _packed_words(audit: Audit, device: Device, cache: float, parameters: float) -> list[str]:
    best = recommended_configuration(audit)
    packed = None if best is None else best["packed_bytes"].value
    if best is None or packed is None:
        return []
    token = decoded(device, packed, cache, parameters)
    if token is None:
        return []
    return [
        f"Packed as {best.name}, with all of its {size(packed)} read for a token: {num(1 / token.seconds)} tokens/s."
    ]
