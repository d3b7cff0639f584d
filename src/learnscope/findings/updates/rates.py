"""Learning rates for the wrong parameters: groups that do not hold the module they are named after, and slow heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.stuck import GuessingRun, guessing_run
from learnscope.names import in_path
from learnscope.quantities import Quantity
from learnscope.quantities.updates import LearningRate, ParameterChange, WeightDelta
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, rows, series
from learnscope.reading.proportions import median_interval
from learnscope.reading.words import between, count, listed, num
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

Change = type[ParameterChange] | type[WeightDelta]
CHANGES: tuple[Change, ...] = (ParameterChange, WeightDelta)
"""Both record `l2`, which is 0 only if no weight changed."""
HEADS = ("head", "classifier", "fc")
BACKBONES = ("backbone", "encoder", "trunk", "body", "features")


@dataclass(frozen=True)
class Group:
    name: str
    """As in records."""
    user_name: str | None
    layers: list[str]
    """The layers of the model that it holds parameters of."""
    tensors: int
    rate: float | None
    """The median of its recorded learning rates, else the one at the start."""
    rates_recorded: int

    def rate_text(self) -> str:
        """In brackets after its name; empty if it is not known."""
        if self.rate is None:
            return ""
        n = self.rates_recorded
        return f" (learning rate {num(self.rate)}{f', median of {n:,}' if n else ' at the start'})"

    def misses(self, layers: list[str]) -> bool:
        """Whether the model has a module of the group's name, and the group holds none of its layers."""
        if self.user_name is None or not self.layers:
            return False
        meant = {layer for layer in layers if in_path(self.user_name, layer)}
        return bool(meant) and not meant & set(self.layers)


@dataclass(frozen=True)
class Pace:
    """How much faster one part of a model moves than another, each relative to its weights."""

    kind: str
    fast: str
    slow: str
    probe: str
    ratio: float
    """Median over the measurements of ‖Δ‖/‖W‖ of the fast part over that of the slow one."""
    interval: tuple[float, float]
    n: int
    steps: tuple[int, int]

    def sentence(self) -> str:
        low, high = self.interval
        return (
            f"‖Δ‖/‖W‖ of {self.fast} was {num(self.ratio)} times that of {self.slow} (median of "
            f"{count(self.n, 'measurement')}, {between(*self.steps)}; 95 % interval {num(low)} to {num(high)})."
        )


@analysis(place=40, check="learning rates of groups", needs=[LearningRate.learning_rate], described=["optimizers"])
def rates(reader: RunReader, cuts: Cuts) -> list[Finding]:
    layers = list((reader.manifest.get("model") or {}).get("layers") or [])
    guessing = guessing_run(reader, cuts)
    wrong = [group for group in groups_of(reader) if group.misses(layers)]
    if wrong:
        return [_misnamed(wrong, reader, guessing, cuts)]
    return _slow_head(reader, guessing, cuts) if guessing is not None else []


def _misnamed(wrong: list[Group], reader: RunReader, guessing: GuessingRun | None, cuts: Cuts) -> Finding:
    """A group is named after a module of the model and holds nothing of it: this needs no threshold."""
    contents = [
        f"the group {group.user_name}{group.rate_text()} holds {listed(group.layers, cuts.names_listed)}, and nothing "
        f"of {group.user_name}"
        for group in wrong
    ]
    differ = len({group.rate for group in groups_of(reader)}) > 1
    # by names of modules, since those of the optimizer's groups are wrong
    pace = next((p for p in _paces(reader, cuts, "named") if p.interval[0] > 1), None)
    detail = [f"In the optimizer, {'; '.join(contents)}."]
    detail += [pace.sentence()] if pace is not None and differ else []
    detail += [guessing.sentence()] if guessing is not None else []
    names, single = [str(group.user_name) for group in wrong], len(wrong) == 1
    tensors = sum(group.tensors for group in wrong)
    return Finding(
        kind="rate_in_wrong_group",
        severity=("critical" if guessing is not None else "warning") if differ else "info",
        title=f"{'An optimizer group' if single else f'{len(wrong)} optimizer groups'} without the parameters "
        f"of the module {'it is' if single else 'they are'} called by: {listed(names, cuts.names_listed)}",
        detail=" ".join(detail),
        advice=f"Give the group {names[0]} the parameters of {names[0]}"
        + (", or exchange the two learning rates" if len(wrong) == 2 else "")
        + ", or rename it if it holds what is meant.",
        evidence=Evidence(probe="run.json", name="optimizers", n=tensors, value=float(len(wrong))),
        scopes=names,
    )


def _slow_head(reader: RunReader, guessing: GuessingRun, cuts: Cuts) -> list[Finding]:
    """The backbone has the higher rate and moves much more than the head, in a model that only guesses."""
    for pace in [*_paces(reader, cuts, "named"), *_paces(reader, cuts, "group")]:
        recorded = [rates_of(reader, pace.kind, scope).values for scope in (pace.fast, pace.slow)]
        if not all(len(values) for values in recorded):
            continue
        fast, slow = (float(np.median(values)) for values in recorded)
        if fast > slow and pace.interval[0] > cuts.slow_head:
            return [_slow_head_finding(pace, fast, slow, guessing)]
    return []


def _slow_head_finding(pace: Pace, fast: float, slow: float, guessing: GuessingRun) -> Finding:
    quantity = ParameterChange.update_to_weight
    return Finding(
        kind="slow_head",
        severity="warning",
        title=f"The larger learning rate went to {pace.fast}, which moves {num(pace.ratio)} times as much as "
        f"{pace.slow}",
        detail=f"The learning rate of {pace.fast} was {num(fast)} and that of {pace.slow} {num(slow)} (medians). "
        f"{pace.sentence()} {guessing.sentence()}",
        advice=f"A new {pace.slow} on a trained {pace.fast} needs the larger of the two: check that they are "
        f"not exchanged. At {num(fast)} what {pace.fast} had learned before may be lost.",
        evidence=evidence_over(pace.steps, pace.probe, quantity, pace.n, pace.ratio, pace.interval),
        scopes=[pace.fast, pace.slow],
    )


def _paces(reader: RunReader, cuts: Cuts, kind: str) -> list[Pace]:
    """Every backbone against every head, among the groups of a kind."""
    paces = []
    for change in CHANGES:
        scopes = list(dict.fromkeys(rows(reader, change.update_to_weight, kind=kind)["scope"]))
        heads, bodies = ([s for s in scopes if s in names] for names in (HEADS, BACKBONES))
        paces += [_pace(reader, change, kind, body, head, cuts) for body in bodies for head in heads]
    return [pace for pace in paces if pace is not None]


def _pace(reader: RunReader, change: Change, kind: str, fast: str, slow: str, cuts: Cuts) -> Pace | None:
    """None for too few measurements in which both were measured and moved."""
    ours, theirs = (over_steps(reader, change.update_to_weight, kind, scope) for scope in (fast, slow))
    steps, at, other = np.intersect1d(ours.steps, theirs.steps, return_indices=True)
    moved = (ours.values[at] > 0) & (theirs.values[other] > 0)
    ratios = ours.values[at][moved] / theirs.values[other][moved]
    interval = median_interval(ratios)
    if interval is None or len(ratios) < cuts.group_measurements:
        return None
    span = int(steps[moved][0]), int(steps[moved][-1])
    return Pace(kind, fast, slow, theirs.probe, float(np.median(ratios)), interval, len(ratios), span)


def groups_of(reader: RunReader) -> list[Group]:
    """The groups that the run began with; empty if it does not say what they hold."""
    entries = [
        group for optimizer in reader.manifest.get("optimizers") or [] for group in optimizer.get("groups") or []
    ]
    groups: dict[str, Group] = {}
    for position, entry in enumerate(entries):
        if "layers" not in entry:
            return []
        user_name = str(entry["name"]) if entry.get("name") else None
        name = user_name or f"group_{position}"
        while name in groups:
            name = f"{name}_{position}"
        recorded = rates_of(reader, "group", name)
        rate = float(np.median(recorded.values)) if len(recorded) else entry.get("lr")
        rate = float(rate) if isinstance(rate, int | float) else None
        tensors, layers = int(entry.get("tensors") or 0), list(entry.get("layers") or [])
        groups[name] = Group(name, user_name, layers, tensors, rate, len(recorded))
    return list(groups.values())


def rates_of(reader: RunReader, kind: str, scope: str) -> Series:
    """The recorded learning rates of a group."""
    return over_steps(reader, LearningRate.learning_rate, kind, scope)


def over_steps(reader: RunReader, quantity: Quantity, kind: str, scope: str) -> Series:
    """The finite numbers of one group."""
    return series(reader, quantity, kind=kind, scope=scope).finite
