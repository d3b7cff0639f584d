"""From foreign curves to records and a manifest, and to a run folder that is there whole or not at all."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from learnscope.importing.foreign import Curve, Foreign, Progress
from learnscope.importing.lines import SOURCE, Maker, Values
from learnscope.importing.mapping import EPOCH_OF, Entry
from learnscope.importing.names import plain
from learnscope.quantities import declared
from learnscope.record import SCHEMA_VERSION, plain_json
from learnscope.redaction import without_secrets
from learnscope.store.backend import Backend, FolderBackend
from learnscope.store.files import has_run, numbered

OF_PARTS = ("train_epoch", "trainer_epoch")
"""Names of an epoch that is counted in parts, 1 at the end of the first."""


def write(source: Foreign, entries: Sequence[Entry], backend: Backend, progress: Progress) -> None:
    """All records, then the manifest."""
    total = sum(entry.values for entry in entries if entry.target is not None)
    done = 0
    counts = []
    for attempt in range(len(source.starts)):
        written = 0
        epochs = _epochs(source, entries, attempt)
        for probe, columns in _by_probe(source, entries, attempt).items():
            for lines, values in Maker(probe, attempt, epochs, _unknown_time(source)).blocks(columns):
                for line in lines:
                    backend.append_later(line)
                backend.write_out()
                written += len(lines)
                done += values
                progress(done, total)
        counts.append(written)
    backend.put_manifest(manifest(source, entries, counts))


def _by_probe(source: Foreign, entries: Sequence[Entry], attempt: int) -> dict[str, list[Values]]:
    probes: dict[str, list[Values]] = {}
    for entry in entries:
        if entry.target is None:
            continue
        curve = source.curves[entry.name]
        own = curve.only(curve.attempts == attempt)
        if len(own):
            order = np.argsort(own.steps, kind="stable")
            values = own.values[order] * entry.factor if entry.factor != 1 else own.values[order]
            column = Values(entry.target, own.steps[order], values, own.times[order])
            probes.setdefault(entry.target.quantity.probe, []).append(column)
    return probes


def _epochs(source: Foreign, entries: Sequence[Entry], attempt: int) -> dict[int, int]:
    """The epoch of each step for which the source states one, counted from 0 where it counts parts of epochs."""
    name = next((entry.name for entry in entries if entry.became == EPOCH_OF), None)
    if name is None:
        return {}
    curve: Curve = source.curves[name]
    whole = bool((curve.values == np.floor(curve.values)).all())
    of_attempt = curve.only((curve.attempts == attempt) & np.isfinite(curve.values) & (np.abs(curve.values) < 2**53))
    if whole and plain(name) not in OF_PARTS and source.format != "trainer":
        epochs = of_attempt.values
    else:  # the step that ends the first epoch is at 1.0, and belongs to it
        epochs = np.maximum(np.ceil(of_attempt.values) - 1, 0)
    return dict(zip(of_attempt.steps.tolist(), epochs.astype(np.int64).tolist(), strict=True))


def _unknown_time(source: Foreign) -> float:
    """For records of which the source gives no time: when its file was last written."""
    return source.ended or source.started or max(file.stat().st_mtime for file in source.files)


def manifest(source: Foreign, entries: Sequence[Entry], counts: Sequence[int]) -> dict[str, Any]:
    """run.json of an imported run."""
    probes = list(dict.fromkeys(entry.target.quantity.probe for entry in entries if entry.target is not None))
    said, now = _times(source), time.time()
    labels = {
        probe: list(dict.fromkeys(label for quantity in declared()[probe].all() for label in quantity.labels))
        for probe in probes
    }
    return {
        "schema": SCHEMA_VERSION,
        "source": SOURCE,
        "created": said[0] if said else now,
        "status": source.status,
        "probes": {probe: {"probe": probe} for probe in probes},
        "labels": labels,
        "config": plain_json(without_secrets(dict(source.config)), nonfinite=str, other=str),
        "environment": plain_json(dict(source.environment), other=str),
        "attempts": [_attempt(source, said, n, count) for n, count in enumerate(counts)],
        "imported": {
            "format": source.format,
            "files": [str(file) for file in source.files],
            "at": now,
            "step": source.step,
            "read_with": source.read_with,
            "learnscope": version("learnscope"),
            "times": "of the source" if said else "not in the source: records have the time of its file",
            "names": [entry.to_json() for entry in entries],
            "left_out": dict(source.left_out),
            "problems": list(source.problems),
            "notes": list(source.notes),
            **plain_json(without_secrets(dict(source.about)), nonfinite=str, other=str),
        },
    }  # fmt: skip


def _times(source: Foreign) -> list[float]:
    """First and last of all times that the source gives, in order; empty if it gives none."""
    known = [curve.times[np.isfinite(curve.times)] for curve in source.curves.values()]
    ends = [float(end) for times in known if len(times) for end in (times.min(), times.max())]
    ends += [each for each in (source.started, source.ended) if each is not None]
    return [min(ends), max(ends)] if ends else []


def _attempt(source: Foreign, said: Sequence[float], number: int, written: int) -> dict[str, Any]:
    curves = [curve.only(curve.attempts == number) for curve in source.curves.values()]
    steps = [int(curve.steps.max()) for curve in curves if len(curve)]
    times = [times for curve in curves if len(times := curve.times[np.isfinite(curve.times)])]
    entry: dict[str, Any] = {
        "attempt": number, "start_step": int(source.starts[number]), "last_step": max(steps, default=0),
        "records": {"written": written, "lost": 0},
    }  # fmt: skip
    if times:
        entry["started"], entry["ended"] = float(min(map(np.min, times))), float(max(map(np.max, times)))
    if said and number == 0 and source.started is not None:
        entry["started"] = source.started
    return entry


def write_folder(path: Path, fill: Callable[[Backend], None]) -> Path:
    """Fill a new run folder beside its place and move it there; returns the place, `name-2` if there is a `name`.

    After an error nothing is left. Of two that are moved at the same moment, one gets the next name.
    """
    path = path if path.name else path.resolve()
    temporary = path.with_name(f".import.{uuid4().hex[:8]}.tmp")
    temporary.mkdir(parents=True)
    try:
        backend = FolderBackend.create(temporary)
        try:
            fill(backend)
        finally:
            backend.close()
        return _moved(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _moved(temporary: Path, path: Path) -> Path:
    for place in numbered(path):
        if _is_free(place):
            try:
                if place.is_dir():
                    place.rmdir()
                return temporary.rename(place)
            except OSError:
                if _is_free(place):  # another has not just taken it
                    raise
    raise AssertionError("there is always a next name")


def _is_free(place: Path) -> bool:
    """Whether a run can be moved there: what others have put into a folder is left alone."""
    return not place.exists() or (place.is_dir() and not has_run(place) and not any(place.iterdir()))
