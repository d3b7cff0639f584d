"""How long it takes from `import torch` to an open session, in a fresh process.

    python bench/start_up.py [--quick] [--runs 5]

Seconds from before `import learnscope` to after `ls.watch(…)` returns, with a run folder, for a small MLP: with and
without an optimizer, with and without holdout data and a probe that evaluates them. torch is imported before; making an
optimizer imports more of torch, also before. Python's compiled files are there, as after an installation: a first
round, which is not counted, writes them. Without an optimizer, nearly half of the time is Python's garbage collector,
which looks at all that torch has made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.claims import Claim, keep, show

WAYS = ("without an optimizer", "with an optimizer", "without an optimizer, with holdout data", "with both")


def opened(way: str) -> float:
    """Seconds of importing and opening, in this process."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = None if "without" in way else torch.optim.AdamW(model.parameters())
    data = [(torch.zeros(16, 64), torch.zeros(16, dtype=torch.long))]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        import learnscope as ls

        given: dict[str, Any] = {"holdout": data, "probes": [ls.GradientFlow(), ls.Holdout(), ls.Loss()]}
        w = ls.watch(model, optimizer, run=Path(folder) / "run", **(given if "holdout" in way or "both" in way else {}))
        seconds = time.perf_counter() - start
        w.close()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(opened(options.way))
        return 0
    runs: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as compiled:
        hidden = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment["PYTHONPYCACHEPREFIX"] = compiled
        for number in range((1 if options.quick else options.runs) + 1):
            for way in WAYS:
                command = [sys.executable, __file__, "--way", way]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                if number:  # the first round writes what Python compiles
                    runs[way].append(float(done.stdout.split()[-1]))
    claims = [Claim(f"import and opening, {way}", found, bound=0.3, unit="s") for way, found in runs.items()]
    held = show(claims)
    if options.quick:
        return 0
    keep("start_up", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
