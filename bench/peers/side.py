"""One side, in an environment of its own: for every line that it reads, the ratio of watched to unwatched steps.

    echo | python -m peers.side trainscope gpt2 --steps 30

Each run is a process of its own, forked from one that has imported the large packages and done nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from tools.loops import LOOPS, PACKAGES, in_turns, pair

from peers.watchers import WATCHERS


def run(watcher_name: str, loop_name: str, steps: int) -> float:
    loops = [LOOPS[loop_name](), LOOPS[loop_name]()]
    watch, ratios = WATCHERS[watcher_name][0], []
    with tempfile.TemporaryDirectory() as folder:
        for turn, (watched, plain) in enumerate((loops, loops[::-1])):
            with watch(watched, Path(folder) / str(turn)) as watcher:
                in_turns(watched, watcher, plain, 10)  # warms up
                seconds = in_turns(watched, watcher, plain, steps)
            ratios.append(seconds[0] / seconds[1])
    return pair(*ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("watcher", choices=list(WATCHERS))
    parser.add_argument("loop", choices=list(LOOPS))
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for package in (*PACKAGES[options.loop], *WATCHERS[options.watcher][1]):
        importlib.import_module(package)
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            try:
                print("ratio", run(options.watcher, options.loop, options.steps), flush=True)
                os._exit(0)
            except Exception:  # noqa: BLE001  (whatever a peer raises is printed, and this child must not go on)
                traceback.print_exc()
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
