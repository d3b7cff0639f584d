"""One project on cases of the zoo, in an environment of its own: a line of JSON for each run.

PYTHONPATH=tests:bench python -m peers.zoo_side torch_audit --only "zero_grad" --seeds 1
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch

from peers.zoo_watchers import WATCHERS
from zoo.judge import Verdict, judge
from zoo.registry import Case, collect


def run(watcher_name: str, case: Case, seed: int) -> Verdict:
    """A project that fails on a case has said nothing of it: the check says what it raised."""
    if watcher_name == "learnscope":
        from zoo.keeper import run_case

        return run_case(case.name, seed)
    torch.manual_seed(seed)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watcher = WATCHERS[watcher_name](Path(folder))
        try:
            check = case.script(watcher, seed)
        except Exception as error:  # noqa: BLE001  (whatever a peer raises must not end the run of all)
            traceback.print_exc(file=sys.stderr)
            failed = f"{type(error).__name__}: {error}"[:200]
            outcome = "quiet" if case.healthy else "silent"
            return Verdict(case.name, seed, case.half, outcome, check=failed)
    return judge(case, seed, watcher.alarms, check, time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("watcher", choices=["learnscope", *WATCHERS])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in collect().values():
        if options.only and not any(part.lower() in case.name.lower() for part in options.only):
            continue
        for seed in case.seeds[: options.seeds]:
            print("verdict", json.dumps(dataclasses.asdict(run(options.watcher, case, seed))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
