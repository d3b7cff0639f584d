"""How to store an audited model: the smallest that loses nothing, the best in a size, the fastest measured here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learnscope.reading.audit import Frontier
from learnscope.reading.audit_numbers import Number, evidence, signed, size, widths
from learnscope.reading.audit_parts import Configuration
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, count, listed, num, percent
from learnscope.record import Finding

MEASURES = {"kl": "mean KL", "mse": "mean squared error"}
GROWS = {
    "perplexity": "perplexity {}", "accuracy": "{} of the answers no longer right", "loss": "loss {}",
    "kl": "mean KL {}", "mse": "mean squared error {}",
}  # fmt: skip

WORTH = 1.1
"""Times less damage from which on another method of rounding is called better."""


def frontier_findings(part: Frontier, cuts: Cuts) -> list[Finding]:
    """What to use, by question."""
    budget = part.choice("at_size") or part.choice("at_damage")
    same = part.choice("indistinguishable")
    within = part.choice("within")
    found = [_recommended(part, *budget, cuts)] if budget is not None else []
    if same is not None and (budget is None or same[0].name != budget[0].name):
        found.append(_recommended(part, *same, cuts, budget=budget is not None))
    if within is not None and same is not None and within[0].name not in {same[0].name, part.recommended_name}:
        found.append(_within(part, *within))
    methods = compared_methods(part)
    return found if methods is None else [*found, methods]


def compared_methods(part: Frontier) -> Finding | None:
    """Whether a method that clips, or is calibrated on data, is worth it: beside rounding to the nearest, in the same
    bits and the same way."""
    bits: Mapping[str, Any] = part.notes.get("bits") or {}
    damages = {item.name: item[part.judged_by].value for item in part.items}
    rows: list[tuple[int, str, float, float]] = []
    for name, of_it in bits.items():
        way = dict(part.scheme(name)) if name in damages else {}
        method = way.pop("method", None)
        if method is None or len(widths_used := set(of_it.values())) != 1:
            continue
        nearest = next(
            (o for o, b in bits.items() if b == of_it and o in damages and dict(part.scheme(o)) == way), None
        )
        ours, theirs = damages[name], None if nearest is None else damages[nearest]
        if ours and theirs:
            rows.append((next(iter(widths_used)), method, ours, theirs))
    if not rows:
        return None
    each = listed([f"{method} {num(ours)} at {w} bits, where rounding to the nearest has {num(theirs)}"
                   for w, method, ours, theirs in rows], len(rows))  # fmt: skip
    width, method, ours, theirs = min(rows, key=lambda row: row[2] / row[3])
    gain, measure = theirs / ours, MEASURES[part.judged_by]
    title = f"{method} does {num(gain)} times less damage than rounding to the nearest, at {width} bits"
    advice = f"Where {width} bits are to do, use it: --method {method} searches with it throughout."
    if gain < WORTH:
        title = "No other method of rounding is better than rounding to the nearest here"
        advice = "Rounding to the nearest will do; calibration on more, or other, data might still help."
    return Finding(
        kind="audit_rounding_method", severity="info", title=title, advice=advice, scopes=[],
        detail=f"{capital(measure)} on data that the search did not see: {each}. Methods are calibrated on the "
        "examples of the search.",
        evidence=evidence(part.probe, part.judged_by, part.notes.get("held_out_examples") or 0, Number(ours)),
    )  # fmt: skip


def lost(facts: Mapping[str, Any]) -> str:
    """What a configuration loses, with its interval and n.

    >>> lost({"measure": "perplexity", "change": 0.0021, "low": -0.001, "high": 0.005, "n": 16, "reason": None})
    'perplexity +0.21 % (95 % interval −0.1 % to +0.5 %, n = 16)'
    """
    share = facts["measure"] in ("perplexity", "loss", "accuracy")

    def write(value: float) -> str:
        return signed(100 * value) + " %" if share else num(value)

    ends = f"no interval: {facts['reason']}" if facts.get("reason") else "95 % interval {} to {}".format(
        write(facts["low"]), write(facts["high"])
    )  # fmt: skip
    if facts["change"] == 0 and facts["measure"] != "accuracy":
        return GROWS[facts["measure"]].format("unchanged" if share else "0")
    return f"{GROWS[facts['measure']].format(write(facts['change']))} ({ends}, n = {facts['n']:,})"


def smaller(item: Configuration) -> str:
    """Its size beside that of the model as stored.

    >>> smaller(Configuration(cells={"packed_bytes": (1.5e6, None), "original_bytes": (6e6, None)}))
    '1.5 MB of 6 MB (4 times smaller)'
    """
    packed, original = item["packed_bytes"].value, item["original_bytes"].value
    if packed is None or original is None:
        return "size n/a"
    times = "" if packed == original else f" ({num(original / packed)} times smaller)"
    return f"{size(packed)} of {size(original)}{times}"


def described(part: Frontier, name: str) -> str:
    """The widths of a configuration and the way in which its weights are rounded, in words."""
    bits: Mapping[str, int] = (part.notes.get("bits") or {}).get(name) or {}
    if not bits:
        return "all as stored"
    way, used = part.scheme(name), set(bits.values())
    if used == {16}:
        return f"all weights in {way.get('half', 'float16')}"
    each = {"channel": "output channel", "tensor": "tensor", "group": f"group of {way.get('group_size')} inputs"}
    words = [f"a scale for each {each[way['granularity']]}" + (" (16 bits)" if way.get("scales") == "float16" else "")]
    zeros = {None: [b for b in used if b <= 3], False: [b for b in used if b <= 8], True: []}[way["symmetric"]]
    whole = [b for b in used if b <= 8]
    if not zeros:
        words.append("symmetric")
    else:
        words.append("asymmetric" + ("" if len(zeros) == len(whole) else f" at {max(zeros)} bits and fewer"))
    if way.get("activation_bits"):
        words.append(f"activations in {way['activation_bits']} bits")
    if way.get("method"):
        words.append(str(way["method"]))
    rest = "" if part.notes.get("embeddings") else "; embeddings and head as stored"
    return f"{widths(bits)}; {', '.join(words)}{rest}"


def searched(part: Frontier) -> str:
    """On how many examples it was searched and judged, and how much was tried."""
    notes = part.notes
    on, judged = notes.get("search_examples"), notes.get("held_out_examples")
    if on is None or judged is None:
        return ""
    given = f" of {part.given:,}" if part.given is not None and part.given > on + judged else ""
    where = f"searched on {on:,} and judged on {judged:,} other examples{given}"
    if notes.get("held_out") is False:
        where = f"searched and judged on the same {count(judged, 'example')}, for there are no others"
    alone = notes.get("alone_examples")
    few = f", single units on {alone:,} of them" if alone is not None and alone < on else ""
    tried = len(part.items) + len(notes.get("dropped") or {}) + len(notes.get("far") or ())
    return f"{tried} configurations {where}{few}"


def _recommended(
    part: Frontier, item: Configuration, facts: Mapping[str, Any], cuts: Cuts, *, budget: bool = False
) -> Finding:
    """The answer to the first question, or beside a budget's answer to the question without one."""
    measure, limit = part.judged_by, part["budget_bytes"].value
    question = "The smallest that cannot be told from the model itself"
    kind = "audit_recommended_bits" if not budget else "audit_smallest_same"
    if not budget and limit is not None:
        question = f"The best in {size(limit)}"
    elif not budget and part["budget_kl"].value is not None:
        question = f"The smallest within a KL of {num(part['budget_kl'].value or 0)}"
    if facts.get("reason"):
        question = question.replace("that cannot be told from the model itself", "within the loss, by the mean alone")
    advice = "Write it: learnscope audit --export FILE, or export(FILE) of a BitWidthAnalyzer."
    if item.name == "original":
        advice = "Leave it as it is, or accept a larger loss: --max_increase."
    elif facts["told_apart"]:
        advice = "It is measurably worse: take it for the size only if that is worth it, else give a larger budget."
    elif facts["high"] is not None and facts["high"] > facts["allowed"]:
        advice += f" The interval reaches beyond {percent(facts['allowed'])}: more --examples would narrow it."
    others = "" if budget else _others(part, item, cuts)
    return Finding(
        kind=kind, severity="info", title=f"{question}: {item.name}, {smaller(item)}",
        detail=f"{capital(lost(facts))} on data that the search did not see, {percent(facts['allowed'])} is accepted; "
        f"{MEASURES[measure]} {num(facts['damage'])}. {capital(described(part, item.name))}. "
        f"{capital(searched(part))}; none is both as small and as good.{others}",
        advice=advice, scopes=list(part.recommended) if not budget else [],
        evidence=evidence(part.probe, measure, facts["n"], item[measure]),
    )  # fmt: skip


def _others(part: Frontier, item: Configuration, cuts: Cuts) -> str:
    """The rest of the frontier, small to large."""
    on_it = sorted((i for i in part.items if i["on_frontier"].value == 1), key=lambda i: i["packed_bytes"].value or 0)
    each = [
        f"{i.name} {size(i['packed_bytes'].value or 0)} ({num(i[part.judged_by].value or 0)})"
        for i in on_it
        if i.name != item.name
    ]
    shown = listed(each, max(cuts.names_listed, 8))
    return f" Also on the frontier of size and {MEASURES[part.judged_by]}: {shown}." if each else ""


def _within(part: Frontier, item: Configuration, facts: Mapping[str, Any]) -> Finding:
    other = "measurably worse" if facts["told_apart"] else "as good on average, with outputs that differ more"
    return Finding(
        kind="audit_smallest_within", severity="info",
        title=f"The smallest within {percent(facts['allowed'])}, {other}: {item.name}, {smaller(item)}",
        detail=f"{capital(lost(facts))} on data that the search did not see; {MEASURES[part.judged_by]} "
        f"{num(facts['damage'])}. {capital(described(part, item.name))}.",
        advice=f"Take it if {percent(facts['allowed'])} is worth the bytes: --max_mb "
        f"{_up(item['packed_bytes'].value or 0)} recommends it.",
        evidence=evidence(part.probe, part.judged_by, facts["n"], item[part.judged_by]), scopes=[item.name],
    )  # fmt: skip


def _up(n: float) -> str:
    """Bytes in MB, rounded up, so that they fit."""
    return f"{-(-n // 1e3) / 1e3:g}"
