"""What became what: each foreign name with the quantity whose place it takes, or with its own name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from learnscope.importing.foreign import Curve, Foreign
from learnscope.importing.names import EPOCHS, GROUP, GROUPS, NOT_A_RATE, RATE, RULES, Target, first_of, plain
from learnscope.options import did_you_mean
from learnscope.quantities import Quantity, declared
from learnscope.quantities.outputs import Loss
from learnscope.store.errors import RunError

OWN, NOTHING, EPOCH = "own", "nothing", "epoch"
"""What a name may be mapped to besides a quantity: its own name, nothing at all, the epoch of the records."""
Wanted = Mapping[str, "str | Quantity"]
Taken = dict[tuple[str, str, str], str]
"""The foreign name that has a place already."""
PERCENT = 0.01
EPOCH_OF, OWN_NAME = "the epoch of the records", "kept under its own name"


@dataclass(frozen=True)
class Entry:
    """One foreign name, and what became of it."""

    name: str
    target: Target | None
    """None for what is in no row: the epoch, and what is left out."""
    became: str
    values: int
    note: str = ""
    factor: float = 1.0
    """What values were multiplied by."""

    def to_json(self) -> dict[str, Any]:
        body = {"name": self.name, "became": self.became, "values": self.values, "note": self.note}
        body |= {"factor": self.factor} if self.factor != 1 else {}
        return {key: value for key, value in body.items() if value != ""}


def mapped(source: Foreign, wanted: Wanted | None = None) -> list[Entry]:
    """An entry for each curve of the source, those of declared quantities first."""
    curves, asked = source.curves, dict(wanted or {})
    taken: Taken = {}
    entries = {name: _asked(name, meaning, curves[name], taken) for name, meaning in asked.items()}
    free = [name for name in curves if name not in asked]
    epoch = None if EPOCH in asked.values() else first_of(free, EPOCHS)
    if epoch is not None:
        entries[epoch] = Entry(epoch, None, EPOCH_OF, len(curves[epoch]))
    own = {name: "as asked" for name, meaning in asked.items() if meaning == OWN}
    for target, names in [*_by_rule(free, source), *_rates(free)]:
        for name in names:
            if name not in entries and name not in own:
                entry = _found(name, _next_group(target, taken), curves[name], taken)
                if isinstance(entry, Entry):
                    entries[name] = entry
                else:
                    own[name] = entry
    for name in curves:
        if entries.get(name) is None or name in own:
            entries[name] = _own(name, curves[name], own.get(name, source.summaries.get(name, "")), taken)
        elif entries[name].became == EPOCH_OF and _has_shares(curves[name]):
            entries[name] = _epoch_and_own(name, curves[name], taken)
    return sorted(entries.values(), key=_order)


def quantity_named(text: str | Quantity) -> Quantity:
    """A declared quantity by its name, `Holdout.holdout_loss`, or by the last part where only one is called so."""
    if isinstance(text, Quantity):
        return text
    probe, _, name = text.rpartition(".")
    usable = {(q.probe, q.name): q for each in declared().values() for q in each.all() if "{" not in q.name}
    if (probe, name) in usable:
        return usable[probe, name]
    alike = [quantity for (_, own), quantity in usable.items() if own == text]
    if len(alike) == 1:
        return alike[0]
    known = [f"{quantity.probe}.{quantity.name}" for quantity in usable.values()]
    if alike:
        raise RunError(f"{text} is a number of several probes: {', '.join(f'{q.probe}.{q.name}' for q in alike)}")
    hint = did_you_mean(text, [*known, OWN, NOTHING, EPOCH])
    raise RunError(
        f"there is no quantity {text!r}.{hint} `learnscope probes` lists them; {OWN!r} keeps the name, {NOTHING!r} "
        f"leaves it out, {EPOCH!r} is the epoch of the records"
    )


def _asked(name: str, meaning: str | Quantity, curve: Curve, taken: Taken) -> Entry:
    if meaning in (NOTHING, OWN):  # an own name is given when it is known which names are taken
        return Entry(name, None, "left out", len(curve), "as asked")
    if meaning == EPOCH:
        return Entry(name, None, EPOCH_OF, len(curve), "as asked")
    quantity = quantity_named(meaning)
    known = next((rule for rule, _ in RULES if rule.quantity == quantity), None)
    target = _next_group(known or _target_of(quantity), taken)
    if target.place in taken:
        raise RunError(f"{taken[target.place]} and {name} cannot both become {quantity.probe}.{quantity.name}")
    taken[target.place] = name
    in_percent = quantity.scale == "share" and _above_one(curve)
    note = "as asked" + (", divided by 100: it is a share" if in_percent else "")
    return Entry(name, target, str(target), len(curve), note, PERCENT if in_percent else 1.0)


def _target_of(quantity: Quantity) -> Target:
    if "model" in quantity.kinds:
        return Target(quantity)
    if "group" in quantity.kinds:
        return Target(quantity, kind="group", scope=GROUP)
    raise RunError(f"{quantity.probe}.{quantity.name} is a number of each {quantity.kinds[0]}, not of a whole model")


def _by_rule(names: Sequence[str], source: Foreign) -> list[tuple[Target, list[str]]]:
    """For each rule the names that it knows, in its order."""
    by_plain: dict[str, list[str]] = {}
    for name in names:
        if name not in source.summaries:
            by_plain.setdefault(plain(name), []).append(name)
    return [(target, [name for each in known for name in by_plain.get(each, ())]) for target, known in RULES]


def _rates(names: Sequence[str]) -> list[tuple[Target, list[str]]]:
    rates = [name for name in names if GROUPS.fullmatch(name) and not name.endswith(NOT_A_RATE)]
    return [(RATE, sorted(rates))]


def _next_group(target: Target, taken: Taken) -> Target:
    """The target itself, or for the rate of a further group the same of the next."""
    number = 0
    while target.kind == "group" and target.place in taken:
        number += 1
        target = Target(target.quantity, target.labels, target.kind, f"group_{number}")
    return target


def _found(name: str, target: Target, curve: Curve, taken: Taken) -> Entry | str:
    """By a rule; why not, if another name has the place already, or the values cannot be what they are called."""
    called = f"{target.quantity.probe}.{target.quantity.name}"
    if target.place in taken:
        return f"{taken[target.place]} is {called}"
    if target.quantity.scale == "share" and _above_one(curve):
        return f"values above 1 are no shares; to divide by 100: --map '{name}={called}'"
    taken[target.place] = name
    return Entry(name, target, str(target), len(curve))


def _own(name: str, curve: Curve, note: str, taken: Taken) -> Entry:
    """A number that the loop logged, under the name that it has; another one only where a quantity has that."""
    target = _own_target(name, taken)
    kept = OWN_NAME if target.quantity.name == name else f"kept as {target.quantity.name}"
    return Entry(name, target, kept, len(curve), note)


def _own_target(name: str, taken: Taken) -> Target:
    key = name
    while (Loss.probe, key, "model") in taken or key in (Loss.loss.name, Loss.accuracy.name):
        key = f"imported/{key}"
    target = Target(Loss.logged.at(key=key) if not set("{}") & set(key) else replace(Loss.logged, name=key))
    taken[target.place] = name
    return target


def _epoch_and_own(name: str, curve: Curve, taken: Taken) -> Entry:
    """Parts of an epoch are in no record's epoch: they stay as numbers beside it."""
    return Entry(name, _own_target(name, taken), EPOCH_OF, len(curve), "and kept under its own name")


def _has_shares(curve: Curve) -> bool:
    return bool((curve.values != np.floor(curve.values)).any())


def _above_one(curve: Curve) -> bool:
    finite = curve.values[np.isfinite(curve.values)]
    return bool(len(finite)) and float(finite.max()) > 1


def _order(entry: Entry) -> tuple[int, str]:
    own = entry.became.startswith("kept")
    return (3 if entry.became == "left out" else 2 if own else 1 if entry.became == EPOCH_OF else 0), entry.became
