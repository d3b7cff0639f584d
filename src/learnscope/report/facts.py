"""What a report says besides findings and figures: what was watched, what was not, what it cost."""

from __future__ import annotations

from typing import Any

from learnscope.quantities import Quantities
from learnscope.quantities.bits import BitFrontier, BitOptimum, BitSensitivity, BitWidths
from learnscope.quantities.cost import ExportedSpeed, InferenceSpeed, LayerTimes, MemoryUse
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import BatchStats, Holdout, Loss, Performance
from learnscope.quantities.robustness import Attacks, BitRobustness, InputPerturbation, NoiseRobustness
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.course.trainers import GIVEN, NONE, TRAINING_SET, holdout_source, trainer_of
from learnscope.reading.gather import labels_of, series
from learnscope.reading.other_numbers import measured_once
from learnscope.reading.words import count, listed, num
from learnscope.store.reader import RunReader

WATCHED = (GradientFlow, ParameterChange, Loss, LearningRate, Holdout, BatchStats)
"""Probes that most trainings are watched with: those that a run lacks are named in its report."""
AUDITED = (
    Performance, MemoryUse, InferenceSpeed, LayerTimes, BitSensitivity, BitFrontier, ExportedSpeed, Attacks,
    NoiseRobustness, InputPerturbation, BitRobustness,
)  # fmt: skip
"""The same for finished models."""
STOOD_FOR: dict[type[Quantities], tuple[type[Quantities], ...]] = {BitFrontier: (BitOptimum, BitWidths)}
"""Probes that measure a part of what another does: with one of them, the other is not missing."""


def watched(reader: RunReader) -> list[tuple[str, str]]:
    """Model, steps, time and environment, as far as the manifest has them."""
    manifest = reader.manifest
    attempts = manifest.get("attempts") or []
    steps = reader.columns().heads.step
    span = f"{steps.min():,} to {steps.max():,} ({count(len(steps), 'record')})" if len(steps) else "none recorded"
    if len(attempts) > 1:
        starts = ", ".join(f"{entry['start_step']:,}" for entry in attempts[1:])
        span += f"; resumed at step {starts}"
    seconds = wall_seconds(reader)
    skipped = sum(int(entry.get("skipped_steps") or 0) for entry in attempts)
    facts = {
        "model": _model(manifest.get("model") or {}),
        "optimizer": ", ".join(str(optimizer.get("class")) for optimizer in manifest.get("optimizers") or []),
        "trainer": _trainer(reader),
        "holdout": _holdout(reader),
        "steps": span,
        "time": _duration(seconds) if seconds else "not recorded",
        "skipped": f"{count(skipped, 'step')} that the gradient scaler did not take" if skipped else "",
        "status": str(reader.status or "not recorded"),
        "measured once": listed(once, 12) if (once := measured_once(reader)) else "",
        "source": str(manifest.get("source") or ""),
        **_imported(manifest.get("imported") or {}),
        **_environment(manifest.get("environment") or {}),
    }
    return [(name, fact) for name, fact in facts.items() if fact]


def _trainer(reader: RunReader) -> str:
    found = trainer_of(reader) or {}
    versions = ", ".join(f"{name} {found[name]}" for name in found if name not in ("class", "kind"))
    return f"{found.get('class')} ({versions})" if found else ""


def _holdout(reader: RunReader) -> str:
    """Where the data to evaluate on are from, if a trainer has chosen them."""
    source = holdout_source(reader)
    only = ", which it trains on: this says nothing about other data" if source == TRAINING_SET else ""
    return source if source.startswith((NONE, GIVEN)) or not source else f"of the trainer's {source}{only}"


def _model(model: dict[str, Any]) -> str:
    if not model:
        return "not recorded"
    parts = [str(model.get("class", "model"))]
    if model.get("parameters") is not None:
        parts.append(f"{model['parameters']:,} parameters in {count(model.get('tensors') or 0, 'tensor')}")
    if model.get("layers"):
        parts.append(count(len(model["layers"]), "layer"))
    if model.get("dtypes"):
        parts.append(listed(sorted(model["dtypes"]), 3))
    return ", ".join(parts)


def _imported(imported: dict[str, Any]) -> dict[str, str]:
    """Where an imported run comes from, and which of its names became a quantity."""
    names = [
        entry for entry in imported.get("names") or [] if not str(entry.get("became")).startswith(("kept", "left"))
    ]
    if not imported:
        return {}
    became = [f"{entry.get('name')} is {entry.get('became')}" for entry in names]
    files = [str(file) for file in imported.get("files") or []]
    where = f"{imported.get('format')}, {listed(files, 1)}" if files else str(imported.get("format"))
    return {"imported": where, "names": listed(became, 8), "step": f"steps are {imported.get('step')}"}


def _environment(environment: dict[str, Any]) -> dict[str, str]:
    parts = [f"{key} {environment[key]}" for key in ("learnscope", "torch", "python") if environment.get(key)]
    parts += [str(environment[key]) for key in ("platform", "accelerator") if environment.get(key)]
    if environment.get("threads"):
        parts.append(count(int(environment["threads"]), "thread"))
    git = environment.get("git") or {}
    changed = ", with uncommitted changes" if git.get("changed") else ""
    code = f"commit {str(git.get('commit'))[:12]}{changed}" if git else ""
    return {"environment": ", ".join(parts) or "not recorded", "code": code}


def wall_seconds(reader: RunReader) -> float | None:
    """The time of all attempts; one that was not closed ends with its last record."""
    heads = reader.columns(superseded=True).heads
    last = {int(attempt): float(heads.time[heads.attempt == attempt].max()) for attempt in set(heads.attempt.tolist())}
    total = 0.0
    for entry in reader.manifest.get("attempts") or []:
        end = entry.get("ended") or last.get(entry.get("attempt"))
        if end and entry.get("started"):
            total += max(0.0, end - entry["started"])
    return total or None


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.4), _duration(150), _duration(7300)
    ('42.4 s', '2 min 30 s', '2 h 1 min')
    """
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def costs(reader: RunReader) -> list[tuple[str, str, str, str, str]]:
    """For each probe: firings, mean milliseconds, total seconds, share of the wall time. Failures are not firings."""
    heads = reader.columns(superseded=True).heads
    took_place = ((probe, heads.of(probe)) for probe in heads.probes)
    spent = {probe: heads.cost[places[~heads.failed[places]]] for probe, places in took_place}
    spent = {probe: cost for probe, cost in spent.items() if len(cost)}
    if len(spent) > 1:
        spent["all"] = heads.cost[~heads.failed]
    wall = wall_seconds(reader)
    lines = []
    for probe, cost in spent.items():
        total = float(cost.sum())
        share = _at_least(100 * total / wall, 0.01, " %") if wall else "n/a"
        lines.append((probe, f"{len(cost):,}", num(1e3 * total / len(cost)), _at_least(total, 1e-3), share))
    return lines


def _at_least(value: float, least: float, unit: str = "") -> str:
    """
    >>> _at_least(12.345, 0.01, " %"), _at_least(0.0012, 0.01, " %")
    ('12.3 %', '< 0.01 %')
    """
    return f"{num(value)}{unit}" if value >= least else f"< {least:g}{unit}"


def not_recorded(reader: RunReader) -> list[tuple[str, str]]:
    """Probes whose numbers this run does not have, and what they would add."""
    probes = AUDITED if reader.manifest.get("source") == "audit" else WATCHED
    measured = {
        probe for probe in probes if any(labels_of(reader, each) for each in (probe, *STOOD_FOR.get(probe, ())))
    }
    missing = [(probe.probe, probe.records) for probe in probes if probe not in measured]
    if labels_of(reader, Loss) and not len(series(reader, Loss.loss)):
        missing.append((Loss.probe, "the training loss under the name `loss`: other names were logged"))
    return missing
