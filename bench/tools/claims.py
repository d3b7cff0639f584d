"""One line of the table of benchmarks: a claim, all its runs, its limit and its bound, and a peer beside it.

    keep("watch", [Claim("every step watched / unwatched", runs, bound=1.04, limit=1.0)])

writes bench/results/watch.json. `python bench/tools/table.py` makes docs/benchmarks.md of all these files.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Claim:
    """What was measured at least five times in one session on one machine; every run is kept, none is chosen."""

    name: str
    runs: Sequence[float]
    bound: float | None = None
    """The figure (the median of the runs) may be at most this; without one, the figure is only reported."""
    limit: float | None = None
    """What no implementation could be better than, in the same unit, and measured in the same run if it can be."""
    unit: str = "ratio"
    threads: int = 1
    peer: str = ""
    """Another project with its version, and what it took for the same work in the same run."""
    peer_runs: Sequence[float] = field(default=())
    note: str = ""

    @property
    def figure(self) -> float:
        return statistics.median(self.runs)

    @property
    def verdict(self) -> str:
        """Whether the bound holds: `held`, `missed`, or `wavers` if the runs lie on both sides of it."""
        if self.bound is None:
            return ""
        if min(self.runs) <= self.bound < max(self.runs):
            return "wavers"
        return "held" if self.figure <= self.bound else "missed"


def keep(name: str, claims: Sequence[Claim], folder: Path = RESULTS, absent: Mapping[str, str] | None = None) -> None:
    """Keep the claims of one script, in place of those that it had; `absent`: peers not measured, and why."""
    import torch

    folder.mkdir(exist_ok=True)
    facts = {"date": datetime.date.today().isoformat(), "machine": machine(), "torch": torch.__version__}
    body: dict[str, object] = {**facts, "claims": [asdict(claim) for claim in claims]}
    if absent:
        body["absent"] = dict(absent)
    (folder / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n")


def show(claims: Sequence[Claim]) -> bool:
    """Print the claims; whether no bound is missed by the median."""
    held = True
    for claim in claims:
        spread = f"{min(claim.runs):.4g} to {max(claim.runs):.4g} in {len(claim.runs)} runs"
        bound = "" if claim.bound is None else f", bound {claim.bound:g} {claim.verdict}"
        limit = "" if claim.limit is None else f", limit {claim.limit:.4g}"
        peer = f"; {claim.peer} {statistics.median(claim.peer_runs):.4g}" if claim.peer_runs else ""
        print(f"{claim.name}: {claim.figure:.4g} {claim.unit} ({spread}{limit}{bound}){peer}")
        held &= claim.bound is None or claim.figure <= claim.bound
    return held


def machine() -> str:
    """The processor and its cores, as far as the system tells."""
    model = platform.processor() or platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        names = [line.partition(":")[2].strip() for line in cpu.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores"
