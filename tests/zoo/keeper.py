"""Runs one case and judges what the findings say of it."""

from __future__ import annotations

import io
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import learnscope as ls
from zoo.judge import Verdict, judge
from zoo.registry import Case, collect


def run_case(name: str, seed: int) -> Verdict:
    """Alone in a temporary folder; for processes of a pool, which know a case by its name."""
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
    torch.manual_seed(seed)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            check = case.script(partial(watch, folder), seed)
    except Exception as error:  # noqa: BLE001  (one script that fails must not end the run of all)
        traceback.print_exc(file=sys.stderr)
        return Verdict(case.name, seed, case.half, "broken", check=f"{type(error).__name__}: {error}"[:200])
    seconds = time.perf_counter() - start
    return judge(case, seed, ls.open_run(folder).findings(), check, seconds)
