"""From the records of an audit to its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from learnscope.reading.audit_sheet import Place, Sheet, sheets
from learnscope.reading.audit_tables import (
    Attack,
    Attacks,
    Audit,
    Configuration,
    Configurations,
    Copy,
    Exported,
    Layers,
    Level,
    Levels,
    Memory,
    Number,
    Optimum,
    Part,
    Quality,
    Sensitivity,
    Setting,
    Speed,
    Transfer,
    Unit,
)  # fmt: skip
from learnscope.reading.gather import one_pass
from learnscope.store.reader import RunReader


def read_audit(reader: RunReader) -> Audit:
    """All that an audit measured."""
    run = one_pass(reader)
    return run.remember("audit", lambda: _read(run))


def _read(reader: RunReader) -> Audit:
    found, missing = sheets(reader)
    parts: dict[str, Any] = {part: READERS[part](sheet) for part, sheet in found.items()}
    return Audit(**parts, missing=missing)


def _quality(sheet: Sheet) -> Quality:
    labelled = {
        dict(labels)["k"]: (kind, scope, labels) for kind, scope, labels in sheet.cells if dict(labels).get("k")
    }
    return Quality(
        loss=sheet.model("loss"), perplexity=sheet.model("perplexity"), accuracy=sheet.model("accuracy"),
        top_k={int(k): sheet.at(labelled[k], "top_k_accuracy") for k in sorted(labelled)},
        n_examples=_whole(sheet.model("examples")), positions=_whole(sheet.model("positions")), **sheet.part,
    )  # fmt: skip


def _whole(number: Number) -> int | None:
    return None if number.value is None else int(number.value)


def _speed(sheet: Sheet) -> Speed:
    settings = []
    for place in sheet.places("model"):
        labels = dict(place[2])
        if "phase" not in labels:
            continue

        def get(name: str, place: Place = place) -> Number:
            return sheet.at(place, name)

        settings.append(Setting(
            str(labels["phase"]), int(labels.get("batch", 1)), int(labels.get("length", 0)),
            bool(labels.get("main", False)), get("latency_mean"), get("latency_p50"), get("latency_p95"),
            get("latency_p99"), _whole(get("latency_n")), get("tokens_per_second"), get("examples_per_second"),
            get("batches_per_second"), get("flops_per_second"),
        ))  # fmt: skip
    return Speed(settings=settings, **sheet.part)


def _memory(sheet: Sheet) -> Memory:
    process = next((dict(p[2])["process"] for p in sheet.places("model") if "process" in dict(p[2])), None)
    labels = {} if process is None else {"process": process}
    parts = {scope: sheet.at((kind, scope, labels_), "bytes") for kind, scope, labels_ in sheet.places("part")}
    return Memory(
        parameters=sheet.model("parameters"), model_bytes=sheet.model("model_bytes"),
        peak_bytes=sheet.model("peak_bytes", **labels), run_bytes=sheet.model("run_bytes", **labels), process=process,
        parts=dict(sorted(parts.items(), key=lambda item: -(item[1].value or 0))), **sheet.part,
    )  # fmt: skip


def _layers(sheet: Sheet) -> Layers:
    passes = sheet.notes.get("passes")
    return Layers(
        modules={place[1]: sheet.at(place, "self_seconds") for place in sheet.places("module")},
        layers={place[1]: sheet.at(place, "total_seconds") for place in sheet.places("layer")},
        total=sheet.model("total_seconds"), n=None if passes is None else int(passes), **sheet.part,
    )  # fmt: skip


def _sensitivity(sheet: Sheet) -> Sensitivity:
    described = sheet.notes.get("units") or {}
    measure = str(sheet.notes.get("judged_by", "kl"))
    units = []
    for name in dict.fromkeys(place[1] for place in sheet.places("unit")):
        at = {int(dict(p[2])["bits"]): p for p in sheet.places("unit") if p[1] == name and "bits" in dict(p[2])}
        facts = described.get(name) or {}
        units.append(Unit(
            name, str(facts.get("layer", name)), str(facts.get("part", "other")),
            sheet.at(("unit", name, ()), "weights"), {b: sheet.at(p, measure) for b, p in at.items()},
            {b: sheet.at(p, "bytes") for b, p in at.items()},
        ))  # fmt: skip
    return Sensitivity(units=units, **sheet.part)


def _items(sheet: Sheet) -> list[Configuration]:
    families = sheet.notes.get("family") or {}
    out = []
    for place in sheet.places("configuration"):
        name = place[1]
        family = str(families.get(name) or name.split("_")[0])
        out.append(Configuration(name, family, {n: sheet.at(place, n) for n in sheet.cells[place]}))
    return out


def _configurations(sheet: Sheet) -> Configurations:
    found = Configurations(items=_items(sheet), **sheet.part)
    judged = found.judged_by
    return replace(found, items=[_with_frontier(one, found.items, judged) for one in found.items])


def _with_frontier(one: Configuration, others: Sequence[Configuration], judged: str) -> Configuration:
    """Off the frontier if another record's configuration is smaller and better: each probe saw only its own."""
    if one["on_frontier"].value == 1 and any(_dominates(other, one, judged) for other in others):
        return Configuration(one.name, one.family, {**one.numbers, "on_frontier": Number(0.0)})
    return one


def _dominates(other: Configuration, one: Configuration, judged: str) -> bool:
    size, cost, mine, own = (
        other["packed_bytes"].value,
        other[judged].value,
        one["packed_bytes"].value,
        one[judged].value,
    )
    if size is None or cost is None or mine is None or own is None:
        return False
    return size <= mine and cost <= own and (size, cost) != (mine, own)


def _optimum(sheet: Sheet) -> Optimum:
    chosen = {p[1]: _whole(sheet.at(p, "chosen_bits")) for p in sheet.places("unit")}
    budget = next((n for n in ("budget_bytes", "budget_kl") if sheet.model(n).value is not None), "budget_bytes")
    name = sheet.notes.get("recommended_name")
    return Optimum(
        items=_items(sheet), chosen={unit: bits for unit, bits in chosen.items() if bits is not None},
        recommended={str(u): int(b) for u, b in (sheet.notes.get("recommended") or {}).items()},
        recommended_name=None if name is None else str(name), mixed_wins=sheet.model("mixed_wins"),
        budget=(budget, sheet.model(budget)), **sheet.part,
    )  # fmt: skip


FLAGS = ("pgd_at_least_fgsm", "monotone_in_epsilon", "monotone_in_steps", "random_below_attack")


def _attacks(sheet: Sheet) -> Attacks:
    every = []
    for place in sheet.places("attack"):
        labels = {"norm": "", "epsilon": 0.0, "unit": "absolute", **dict(place[2])}
        sizes = {unit: sheet.at(place, f"epsilon_{unit}") for unit in ("absolute", "relative", "token")}
        steps = labels.get("steps")
        every.append(Attack(
            place[1], str(labels["norm"]), float(labels["epsilon"]), str(labels["unit"]),
            None if steps is None else int(steps), sheet.at(place, "accuracy"), sheet.at(place, "loss"),
            sheet.at(place, "kl"), sheet.at(place, "zero_gradient_share"), sizes,
        ))  # fmt: skip
    return Attacks(
        clean=next((one for one in every if one.name == "clean"), None),
        attacks=[one for one in every if one.name != "clean"], gap=sheet.model("robustness_gap"),
        flags={name: sheet.model(name) for name in FLAGS}, **sheet.part,
    )  # fmt: skip


def _levels(kind: str) -> Callable[[Sheet], Levels]:
    def read(sheet: Sheet) -> Levels:
        found = []
        for place in sheet.places(kind):
            accuracy, loss, kl = (sheet.at(place, f"{name}_mean") for name in ("accuracy", "loss", "kl"))
            level = float(dict(place[2]).get("level", 0.0))
            seeds, changed = _whole(sheet.at(place, "seeds")), sheet.at(place, "changed_share")
            found.append(Level(place[1], level, accuracy, loss, kl, seeds, changed))
        return Levels(levels=found, **sheet.part)

    return read


def _transfer(sheet: Sheet) -> Transfer:
    places = {(int(dict(p[2])["attack_bits"]), int(dict(p[2])["test_bits"])): p for p in sheet.places("transfer")}
    return Transfer(
        accuracy={bits: sheet.at(place, "accuracy") for bits, place in places.items()},
        clean={int(dict(place[2])["bits"]): sheet.at(place, "accuracy") for place in sheet.places("bits")},
        **sheet.part,
    )  # fmt: skip


def _exported(sheet: Sheet) -> Exported:
    copies = {
        place[1]: Copy(
            sheet.at(place, "latency_p50"), _whole(sheet.at(place, "latency_n")), sheet.at(place, "speed_up"),
            sheet.at(place, "weight_bytes"), sheet.at(place, "kl"),
        )
        for place in sheet.places("exported")
    }  # fmt: skip
    return Exported(original=copies.pop("original", None), copies=copies, **sheet.part)


READERS: dict[str, Callable[[Sheet], Part]] = {
    "quality": _quality, "speed": _speed, "memory": _memory, "layers": _layers, "sensitivity": _sensitivity,
    "configurations": _configurations, "optimum": _optimum, "exported": _exported, "attacks": _attacks,
    "noise": _levels("noise"), "perturbations": _levels("perturbation"), "transfer": _transfer,
}  # fmt: skip
