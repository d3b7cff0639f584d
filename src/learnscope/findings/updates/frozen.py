"""Parameters that do not move: in no optimizer, frozen on purpose, or trained in vain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from learnscope.findings.outputs.stuck import Stuck, stuck
from learnscope.findings.registry import analysis
from learnscope.findings.updates.not_moving import Moves, moves_of, not_moving, unmoved
from learnscope.findings.updates.still import Still, still, whole_groups
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, listed, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class _Seen:
    """What the run says about the movement of its weights, and whether the model is no better than guessing."""

    model: dict[str, Any]
    moves: Moves | None
    resting: Still | None
    stuck: Stuck | None
    cuts: Cuts

    def layers_of(self, names: list[str]) -> list[str]:
        """The resting layers that hold these parameters."""
        return self.resting.among(names) if self.resting is not None else []

    def more(self, layers: list[str]) -> str:
        """What is to be added of resting layers: the groups they make up, and that the model is stuck, if it is."""
        if self.resting is None or not layers:
            return ""
        whole = whole_groups(self.resting, layers, self.model, self.cuts.names_listed)
        return f"{whole} {self.stuck.said()}" if self.stuck is not None else whole

    def measurements(self, names: list[str]) -> tuple[int, int, tuple[int, int]] | None:
        """How often these were measured, how many of them ever moved, between which steps; None if they were not."""
        if self.moves is not None:
            n = max((self.moves.measured.get(name, 0) for name in names), default=0)
            return (n, sum(1 for name in names if self.moves.moved.get(name)), self.moves.span) if n else None
        layers = self.layers_of(names)
        if self.resting is None or not all(any(f".{layer}." in f".{name}" for layer in layers) for name in names):
            return None  # a layer that moved does not tell which of its tensors did
        return self.resting.n, 0, self.resting.span


@analysis(place=70)
def frozen(reader: RunReader, cuts: Cuts) -> list[Finding]:
    model: dict[str, Any] = reader.manifest.get("model") or {}
    seen = _Seen(model, moves_of(reader), still(reader, cuts.frozen_measurements), stuck(reader, cuts), cuts)
    on_purpose, unheld = list(model.get("frozen") or []), list(model.get("trainable_outside_optimizer") or [])
    found = []
    if unheld:
        found.append(_outside(unheld, seen))
    rest = unmoved(seen.moves, seen.resting, {*on_purpose, *unheld}, cuts)
    if rest is not None:
        layers = rest.names if rest.what == "layer" else seen.layers_of(rest.names)
        found.append(not_moving(rest, reader, cuts, seen.more(layers)))
    if seen.moves is not None:
        thawed = [name for name in on_purpose if seen.moves.moved.get(name)]
        if thawed:
            found.append(_thawed(thawed, seen.moves, cuts))
    if on_purpose:
        found.append(_on_purpose(on_purpose, seen))
    return found


def _outside(names: list[str], seen: _Seen) -> Finding:
    cuts, moves = seen.cuts, seen.moves
    measured = seen.measurements(names)
    moved = [name for name in names if moves is not None and moves.moved.get(name)]
    tensors = int(seen.model.get("tensors") or 0)
    share = f" of {tensors:,}" if tensors else ""
    one = len(names) == 1
    them = "it" if one else "them"
    who = f"{'It is' if one else 'They are'} {listed(names, cuts.names_listed)}"
    if measured is None:
        said = f"{who}. Whether something else moves {them} was not measured (ParameterChange would)."
    elif moved:
        which = "" if len(moved) == len(names) else f": {listed(moved, cuts.names_listed)}"
        subject = "It" if one else "All of them" if len(moved) == len(names) else f"{len(moved)} of them"
        said = f"{who}. {subject} moved all the same, in {count(measured[0], 'measurement')}{which}."
    else:
        n, _, (first, last) = measured
        said = (
            f"{who}. {'It did not move' if one else 'None of them moved'} in {count(n, 'measurement')}, between steps "
            f"{first:,} and {last:,}."
        )
    return Finding(
        kind="outside_optimizer",
        severity="info" if len(moved) == len(names) else "warning",
        title=f"{count(len(names), 'trainable tensor')}{share} in no optimizer",
        detail=said + seen.more(seen.layers_of(names)),
        advice=f"Something else updates {them}: nothing to do, if that is meant."
        if len(moved) == len(names)
        else f"Pass {them} to the optimizer, or set requires_grad to False so that no gradient is computed for {them}.",
        evidence=Evidence(
            probe="run.json", name="trainable_outside_optimizer", n=tensors or len(names), value=float(len(names))
        ),
        scopes=names,
    )


def _thawed(names: list[str], moves: Moves, cuts: Cuts) -> Finding:
    n = min(moves.measured[name] for name in names)
    times = max(moves.moved[name] for name in names)
    return Finding(
        kind="frozen_but_moving",
        severity="warning",
        title=f"{count(len(names), 'tensor')} changed though frozen when the run began",
        detail=f"Stored bits of {listed(names, cuts.names_listed)} changed in {'' if len(names) == 1 else 'up to '}"
        f"{times:,} of {count(n, 'measurement')}, between steps {moves.span[0]:,} and {moves.span[1]:,}.",
        advice=f"Unfrozen on a schedule, this is as meant. If not, look for what writes "
        f"{'it' if len(names) == 1 else 'them'}: an optimizer that "
        "decays weights without gradients, an average of weights, or code that sets requires_grad again.",
        evidence=Evidence(
            probe=moves.grid.probe, name=ParameterChange.visible_share.name, n=n, first_step=moves.span[0],
            last_step=moves.span[1], value=float(times),
        ),
        scopes=names,
    )  # fmt: skip


def _on_purpose(names: list[str], seen: _Seen) -> Finding:
    model, cuts = seen.model, seen.cuts
    tensors, parameters = int(model.get("tensors") or 0), int(model.get("parameters") or 0)
    entries = model.get("frozen_parameters")
    of = f" of {tensors:,}" if tensors else ""
    if entries is not None and parameters:
        share = f"{int(entries):,} of {parameters:,} parameters, {percent(int(entries) / parameters)}"
    else:
        share = f"{percent(len(names) / tensors)} of the tensors" if tensors else "share not recorded"
    said = ""
    measured = seen.measurements(names)
    if measured is not None:
        n, moved, _ = measured
        who = ("It" if moved else "It has not") if len(names) == 1 else f"{moved or 'None'} of them"
        said = f" {who} changed in {count(n, 'measurement')}."
    layers = seen.layers_of(names)
    advice = "Nothing to do if this is meant, as for adapters; else set requires_grad before the optimizer is made."
    if layers and seen.stuck is not None:
        advice = (
            "What is trained can only use what the frozen part passes on. Check that the weights it was meant to have "
            "were loaded into it, or train it too: set requires_grad before the optimizer is made."
        )
    return Finding(
        kind="frozen",
        severity="warning" if layers and seen.stuck is not None else "info",
        title=f"{count(len(names), 'tensor')}{of} frozen (requires_grad is False): {share}",
        detail=f"{'It is' if len(names) == 1 else 'They are'} {listed(names, cuts.names_listed)}.{said}"
        f"{seen.more(layers)}",
        advice=advice,
        evidence=Evidence(probe="run.json", name="frozen", n=tensors or len(names), value=float(len(names))),
        scopes=names,
    )
