"""Runs one case and judges what the findings say of it, now or of a training that was kept."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import redirect_stderr
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import learnscope as ls
from zoo.judge import Verdict, judge
from zoo.registry import Case, Check, collect

CHECKED = "checked.json"
"""Beside a training that is kept: what the script said of itself, written when it was over."""


def run_case(name: str, seed: int, room: Path | None = None) -> Verdict:
    """For processes of a pool, which know a case by its name. The training is kept in `room`, and taken from there if
    it is there already: the findings are judged again, and nothing is trained."""
    if room is not None:
        return run_in(collect()[name], seed, room / hashlib.sha256(f"{name} {seed}".encode()).hexdigest()[:12] / "run")
    with tempfile.TemporaryDirectory() as folder:
        return run_in(collect()[name], seed, Path(folder) / "run")


def watch(folder: Path, model: nn.Module, optimizer: Any, *, ledger: bool = False, **options: Any) -> Any:
    """As a user calls it; `ledger` where the loop hands over which examples are in the batch, to be followed."""
    if ledger:
        has = options.get("holdout") is not None
        options["probes"] = [*ls.default_probes(holdout=has), ls.ExampleLedger()]
    return ls.watch(model, optimizer, run=folder, **options)


def run_in(case: Case, seed: int, folder: Path) -> Verdict:
    """A script that raises is broken, with what it raised."""
    torch.set_num_threads(1)
    kept = folder.parent / CHECKED
    start = time.perf_counter()
    if kept.exists():
        check = Check(**facts) if (facts := json.loads(kept.read_text())["check"]) else None
    else:
        torch.manual_seed(seed)
        try:
            with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                check = case.script(partial(watch, folder), seed)
        except Exception as error:  # noqa: BLE001  (one script that fails must not end the run of all)
            traceback.print_exc(file=sys.stderr)
            return Verdict(case.name, seed, case.half, "broken", check=f"{type(error).__name__}: {error}"[:200])
        kept.write_text(json.dumps({"name": case.name, "seed": seed, "check": asdict(check) if check else None}))
    seconds = time.perf_counter() - start
    return judge(case, seed, ls.open_run(folder).findings(), check, seconds)
