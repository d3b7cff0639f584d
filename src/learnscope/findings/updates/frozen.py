"""Parameters that do not change: in no optimizer, frozen, or trained in vain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.stuck import GuessingRun, guessing_run
from learnscope.findings.updates.unchanged import (
    TensorChanges,
    UnchangedLayers,
    not_moving,
    tensor_changes,
    unchanged_layers,
    unchanged_tensors,
)
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import grid
from learnscope.reading.words import count, listed, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

EXPLAINS = ("not_moving", "no_gradient", "not_learning", "plateau", "learning_rate_too_low")
"""What a run may show because tensors are in no optimizer."""


@dataclass(frozen=True)
class _Changes:
    """What a run says about changes of its weights, and whether its model is no better than guessing."""

    model: dict[str, Any]
    tensors: TensorChanges | None
    layers: UnchangedLayers | None
    guessing: GuessingRun | None
    cuts: Cuts

    def layers_of(self, names: list[str]) -> list[str]:
        """The unchanged layers that hold these parameters."""
        return self.layers.holding(names) if self.layers is not None else []

    def more(self, layers: list[str]) -> str:
        """What to add about unchanged layers: the groups they make up, and that the model only guesses, if it does."""
        if self.layers is None or not layers:
            return ""
        groups = self.layers.whole_groups(layers, self.model, self.cuts.names_listed)
        return f"{groups} {self.guessing.sentence()}" if self.guessing is not None else groups

    def changed(self, names: list[str]) -> list[str]:
        return [name for name in names if self.tensors is not None and self.tensors.changed.get(name)]

    def measured(self, names: list[str]) -> tuple[int, tuple[int, int]] | None:
        """How often these were measured, and between which steps; None if they were not."""
        if self.tensors is not None:
            n = max((self.tensors.measured.get(name, 0) for name in names), default=0)
            return (n, self.tensors.span) if n else None
        layers = self.layers_of(names)
        if self.layers is None or not all(any(f".{layer}." in f".{name}" for layer in layers) for name in names):
            return None  # that a layer changed does not tell which of its tensors did
        return self.layers.n, self.layers.span

    def listed(self, names: list[str]) -> str:
        return f"{'It is' if len(names) == 1 else 'They are'} {listed(names, self.cuts.names_listed)}."

    def number(self, names: list[str], what: str) -> tuple[str, Evidence]:
        """How many of the model's tensors these are, in words and as evidence from a field of the manifest."""
        tensors = int(self.model.get("tensors") or 0)
        evidence = Evidence(probe="run.json", name=what, n=tensors or len(names), value=float(len(names)))
        return f" of {tensors:,}" if tensors else "", evidence


@analysis(place=70, check="weights that do not move", needs=[ParameterChange.visible_share])
def frozen(reader: RunReader, cuts: Cuts) -> list[Finding]:
    model: dict[str, Any] = reader.manifest.get("model") or {}
    layers = unchanged_layers(reader, cuts.frozen_measurements)
    changes = _Changes(model, tensor_changes(reader), layers, guessing_run(reader, cuts), cuts)
    on_purpose, outside = list(model.get("frozen") or []), list(model.get("trainable_outside_optimizer") or [])
    findings = [_outside(outside, changes)] if outside else []
    explained = [*on_purpose, *outside]
    if changes.tensors is not None:
        if names := unchanged_tensors(changes.tensors, explained, cuts):
            more = changes.more(changes.layers_of(list(names)))
            findings.append(not_moving(changes.tensors, names, reader, cuts, more))
        if thawed := changes.changed(on_purpose):
            findings.append(_thawed(thawed, changes.tensors, cuts, trained=_trained(reader, thawed)))
    elif layers is not None:
        explained_layers = layers.holding(explained)
        if rest := {layer: layers.n for layer in layers.layers if layer not in explained_layers}:
            findings.append(not_moving(layers, rest, reader, cuts, changes.more(list(rest))))
    told = [_on_purpose(on_purpose, changes)] if on_purpose else []
    adapted = any(".base_layer." in name for name in on_purpose)  # PEFT's name for what an adapter is put on
    return [*findings, *(finding for finding in told if finding.severity != "info" or not adapted)]


def _outside(names: list[str], changes: _Changes) -> Finding:
    measured, changed = changes.measured(names), changes.changed(names)
    share, evidence = changes.number(names, "trainable_outside_optimizer")
    single, all_changed = len(names) == 1, len(changed) == len(names)
    them = "it" if single else "them"
    if measured is None:
        moved = f"Whether something else moves {them} was not measured (ParameterChange would)."
    elif changed:
        which = "" if all_changed else f": {listed(changed, changes.cuts.names_listed)}"
        subject = "It" if single else "All of them" if all_changed else f"{len(changed)} of them"
        moved = f"{subject} moved all the same, in {count(measured[0], 'measurement')}{which}."
    else:
        n, (first, last) = measured
        subject = "It did not move" if single else "None of them moved"
        moved = f"{subject} in {count(n, 'measurement')}, between steps {first:,} and {last:,}."
    advice = f"Pass {them} to the optimizer, or set requires_grad to False so that no gradient is computed for {them}."
    return Finding(
        kind="not_optimised",
        severity="info" if all_changed else "warning",
        title=f"{count(len(names), 'trainable tensor')}{share} in no optimizer",
        detail=f"{changes.listed(names)} {moved}{changes.more(changes.layers_of(names))}",
        advice=f"Something else updates {them}: nothing to do, if that is meant." if all_changed else advice,
        evidence=evidence,
        scopes=names,
        cause=not all_changed,
        explains=() if all_changed else EXPLAINS,
    )


def _averaged(names: list[str], tensors: TensorChanges) -> bool:
    """Whether each of these has a moving namesake in another part of the model, as an average of weights has."""
    trained = {name.split(".", 1)[-1] for name, n in tensors.changed.items() if n and name not in names}
    return all("." in name and name.split(".", 1)[-1] in trained for name in names)


def _trained(reader: RunReader, names: list[str]) -> bool:
    """Whether each of these has had a gradient later on: a schedule that unfreezes them, and no foreign hand."""
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    moved = [scope for scope, values in zip(norms.scopes, norms.values.T, strict=True) if np.nan_to_num(values).any()]
    return all(any(name.startswith(f"{scope}.") for scope in moved) for name in names)


def _thawed(names: list[str], tensors: TensorChanges, cuts: Cuts, *, trained: bool) -> Finding:
    n = min(tensors.measured[name] for name in names)
    times = max(tensors.changed[name] for name in names)
    first, last = tensors.span
    return Finding(
        kind="frozen_but_moving",
        severity="info" if trained or _averaged(names, tensors) else "warning",
        title=f"{count(len(names), 'tensor')} changed though frozen when the run began",
        detail=f"Stored bits of {listed(names, cuts.names_listed)} changed in {'' if len(names) == 1 else 'up to '}"
        f"{times:,} of {count(n, 'measurement')}, between steps {first:,} and {last:,}.",
        advice=f"If a schedule unfreezes {'it' if len(names) == 1 else 'them'}, nothing to do. If not, look for what "
        "writes to frozen weights: an optimizer that decays weights without gradients, an average of weights, or code "
        "that sets requires_grad again.",
        evidence=evidence_over(tensors.span, tensors.probe, ParameterChange.visible_share, n, float(times)),
        scopes=names,
    )


def _on_purpose(names: list[str], changes: _Changes) -> Finding:
    model = changes.model
    tensors, parameters = int(model.get("tensors") or 0), int(model.get("parameters") or 0)
    entries = model.get("frozen_parameters")
    of, evidence = changes.number(names, "frozen")
    if entries is not None and parameters:
        share = f"{int(entries):,} of {parameters:,} parameters, {percent(int(entries) / parameters)}"
    else:
        share = f"{percent(len(names) / tensors)} of the tensors" if tensors else "share not recorded"
    moved = ""
    if (measured := changes.measured(names)) is not None:
        changed = len(changes.changed(names))
        who = ("It" if changed else "It has not") if len(names) == 1 else f"{changed or 'None'} of them"
        moved = f" {who} changed in {count(measured[0], 'measurement')}."
    layers = changes.layers_of(names)
    suspect = bool(layers) and changes.guessing is not None
    advice = "Nothing to do if this is meant, as for adapters; else set requires_grad before the optimizer is made."
    if suspect:
        advice = (
            "What is trained can only use what the frozen part passes on. Check that the weights it was meant to have "
            "were loaded into it, or train it too: set requires_grad before the optimizer is made."
        )
    return Finding(
        kind="frozen",
        severity="warning" if suspect else "info",
        title=f"{count(len(names), 'tensor')}{of} frozen (requires_grad is False): {share}",
        detail=f"{changes.listed(names)}{moved}{changes.more(layers)}",
        advice=advice,
        evidence=evidence,
        scopes=names,
    )
