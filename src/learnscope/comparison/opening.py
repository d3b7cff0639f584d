"""The runs to compare: opened, labelled, and described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnscope.comparison.series import SeriesOf
from learnscope.run import Run, open_run
from learnscope.store.backend import RunError


def open_runs(runs: Sequence[str | Path | Run], names: Sequence[str] | None = None) -> dict[str, Run]:
    """The runs by label: `names`, or as much of each folder's path as makes them differ."""
    if isinstance(runs, str | Path | Run) or len(runs) < 2:
        raise RunError("a comparison needs two runs or more: ls.compare(['runs/a', 'runs/b'])")
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    identities: list[Path | Run] = []
    for run in opened:
        itself = run.path.resolve() if run.path is not None else run
        if itself in identities:
            raise RunError(f"{run.path or 'a run in memory'} is given twice: a run does not differ from itself")
        identities.append(itself)
    labels = _labels(identities) if names is None else [str(name) for name in names]
    if len(labels) != len(opened):
        raise RunError(f"{len(labels)} names for {len(opened)} runs: give one name a run, or none")
    if len(set(labels)) < len(labels) or not all(label.strip() for label in labels):
        raise RunError(f"the names of the runs must differ and not be empty: {', '.join(map(repr, labels))}")
    return dict(zip(labels, opened, strict=True))


def _labels(runs: Sequence[Path | Run]) -> list[str]:
    """Folder names; where two are the same, with as many parents as makes them differ."""
    paths = [run.parts if isinstance(run, Path) else (f"in memory {n}",) for n, run in enumerate(runs, start=1)]
    used = [1] * len(paths)
    while True:
        labels = ["/".join(path[-n:]) for path, n in zip(paths, used, strict=True)]
        counts = Counter(labels)
        longer = [n + (counts[label] > 1 and n < len(path)) for path, label, n in zip(paths, labels, used, strict=True)]
        if longer == used:
            return labels
        used = longer


@dataclass(frozen=True)
class RunFacts:
    """Where a run is, and how far it came."""

    label: str
    path: str | None
    """Its folder; None for a run in memory."""
    source: str | None
    status: str | None
    first_step: int | None
    """The first recorded step; None for a run without numbers."""
    last_step: int | None
    resumed_at: tuple[int, ...]
    """The first step of each later attempt."""
    problems: tuple[str, ...]


def facts_of(label: str, run: Run, manifest: Mapping[str, Any], series: SeriesOf) -> RunFacts:
    attempts = manifest.get("attempts") or []
    return RunFacts(
        label=label,
        path=str(run.path) if run.path is not None else None,
        source=manifest.get("source"),
        status=run.status,
        first_step=min((int(values.steps[0]) for values in series.values()), default=None),
        last_step=max((int(values.steps[-1]) for values in series.values()), default=None),
        resumed_at=tuple(int(entry["start_step"]) for entry in attempts[1:]),
        problems=tuple(run.problems),
    )


def notes_on(runs: Sequence[RunFacts]) -> list[str]:
    """Warnings about the runs for the reader of the comparison."""
    problems = [f"{facts.label}: {problem}" for facts in runs for problem in facts.problems]
    notes = [f"{problem}; a difference may come from that" for problem in problems]
    if len({facts.source == "telemetry" for facts in runs}) > 1:
        notes.append("a step of telemetry is a batch, elsewhere it is an optimizer step: the same number may not be "
                     "the same moment")  # fmt: skip
    notes += [f"{facts.label} holds no numbers" for facts in runs if facts.last_step is None]
    unfinished = [facts for facts in runs if facts.status not in ("finished", None)]
    return notes + [f"{facts.label} is not finished: {facts.status}" for facts in unfinished]
