"""Which previous weights a session keeps, and for whom."""

from __future__ import annotations

from collections.abc import Iterable

from learnscope.core.probe import Probe
from learnscope.core.subject import Subject
from learnscope.model.weights.snapshot import Snapshot


def snapshot_key(probe: Probe) -> str | None:
    """Probes that look equally often at equally kept weights share one copy; None for those that need none."""
    if "previous" not in probe.needs:
        return None
    # a schedule is known by its name, so that a resumed run finds its copy again
    every = probe.every if isinstance(probe.every, int) else getattr(probe.every, "__qualname__", "schedule")
    return "-".join(map(str, (probe.at, every, *_placement(probe)))).replace("/", "_")


def take_snapshots(subject: Subject, probes: Iterable[Probe], step: int) -> dict[str, Snapshot]:
    """One copy of the weights for each group of probes that can share it."""
    kept: dict[str, Snapshot] = {}
    for probe in probes:
        key = snapshot_key(probe)
        if key is not None and key not in kept:
            device, dtype = _placement(probe)
            kept[key] = Snapshot(subject.by_name(), step, device=device, dtype=dtype)
    return kept


def _placement(probe: Probe) -> tuple[str, str]:
    return getattr(probe, "snapshot_device", "cpu"), getattr(probe, "snapshot_dtype", "native")
