"""What watching a training loop costs beside other projects that watch one.

    python bench/peers.py [--quick] [--runs 5] [--steps 30] [--only mlp …] [--cache ~/.cache/learnscope-peers]

Every run of every side is a process of its own, in the environment of that side, which is made in the cache at first
use (bench/peers/): there, a watched and an unwatched loop, of the same code for all, take turns step by step, and then
exchange their roles; a run is the geometric mean of both ratios. The processes of all sides take turns. Every step is
watched; what is recorded of it differs from project to project and is said beside each. Seconds by the clock, at one
thread.

The bound of each claim is what the peer took. Peers that could not be installed, or do not compare, are named.
Adapters have no peer to install: beside them stands plain code of ours that decomposes B·A module by module, on
matrices of a usual width, and on small ones, where it costs least.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peers.environments import ABSENT, PEERS, NotInstalled, environment
from tools.claims import Claim, keep, show

BENCH = Path(__file__).parent
OWN = "learnscope"


@dataclass(frozen=True)
class Side:
    name: str
    watcher: str
    python: Path = Path(sys.executable)


PLAIN = Side("plain code, an SVD of B·A for each module", "plain_adapters")
LOOPS = {
    "gpt2": ("GPT-2 of 0.45 M, every step watched / unwatched", Side(OWN, "learnscope")),
    "mlp": ("MLP of 0.09 M, every step watched / unwatched", Side(OWN, "learnscope")),
    "adapters": ("LoRA on GPT-2 of width 512, every tenth step measured / unwatched", Side(OWN, "learnscope_adapters")),
    "small_adapters": (
        "LoRA on GPT-2 of width 128, every step measured / unwatched",
        Side(OWN, "learnscope_adapters"),
    ),
}


class Failed(Exception):
    """A side that did not go to its end, with what it said last."""


def sides(cache: Path, quick: bool) -> tuple[dict[str, list[Side]], dict[str, str]]:
    """For each loop the peers, and the peers that are missing with the reason."""
    found: dict[str, list[Side]] = {"gpt2": [], "mlp": [], "adapters": [PLAIN], "small_adapters": [PLAIN]}
    missing = dict(ABSENT)
    for peer in () if quick else PEERS:
        try:
            python = environment(peer, cache)
        except NotInstalled as error:
            missing[f"{peer.package} {peer.version}"] = f"it could not be installed: {error}"
            continue
        for loop in ("gpt2", "mlp") if peer.watcher == "torch_audit" else ("gpt2",):
            found[loop].append(Side(peer.name, peer.watcher, python))
    return found, missing


@contextlib.contextmanager
def runs_of(side: Side, loop: str, steps: int) -> Iterator[Iterator[float]]:
    """One ratio after the other, each measured when it is asked for."""
    path = os.pathsep.join([str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])])
    number = {"mlp": 10 * steps, "adapters": max(10, steps // 20 * 10)}.get(loop, steps)
    command = [str(side.python), "-m", "peers.side", side.watcher, loop, "--steps", str(number)]
    pipe, environ = subprocess.PIPE, {**os.environ, "PYTHONPATH": path}
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True, env=environ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def ratios() -> Iterator[float]:
            while True:
                with contextlib.suppress(BrokenPipeError):
                    print(file=process.stdin, flush=True)
                line = next((line for line in process.stdout if line.startswith("ratio ")), None)
                if line is None:
                    said.seek(0)
                    raise Failed((said.read().strip().splitlines() or ["it said nothing"])[-1])
                yield float(line.split()[1])

        yield ratios()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def measure(loop: str, peers: list[Side], runs: int, steps: int) -> tuple[list[Claim], dict[str, str]]:
    """A claim beside each peer, and the peers that failed with what they said."""
    name, own = LOOPS[loop]
    taken: dict[Side, list[float]] = {side: [] for side in (own, *peers)}
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        going = {side: stack.enter_context(runs_of(side, loop, steps)) for side in taken}
        for _ in range(runs):
            for side in list(going):
                try:
                    taken[side].append(next(going[side]))
                except Failed as error:
                    if side is own:
                        raise
                    failed[side.name] = f"it failed on {loop}: {error}"
                    del going[side]
    claims = [
        Claim(
            f"{name}, beside {side.watcher.replace('_', '-')}", taken[own], statistics.median(taken[side]), 1.0,
            peer=side.name, peer_runs=taken[side], note="Bound: what the peer took.",
        )
        for side in going if side is not own
    ]  # fmt: skip
    return claims, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, nothing installed: does it run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", nargs="*", choices=list(LOOPS), default=list(LOOPS), help="keeps nothing")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "learnscope-peers"
    parser.add_argument("--cache", type=Path, default=cache, help="where the environments of peers are kept")
    options = parser.parse_args()
    found, missing = sides(options.cache.expanduser().absolute(), options.quick)
    runs, steps = (1, 10) if options.quick else (options.runs, options.steps)
    claims: list[Claim] = []
    for loop in options.only:
        if found[loop]:
            made, failed = measure(loop, found[loop], runs, steps)
            claims += made
            missing |= failed
    held = show(claims)
    for peer, reason in missing.items():
        print(f"not measured: {peer}: {reason}")
    if options.quick or len(options.only) < len(LOOPS):
        return 0
    keep("peers", claims, absent=missing)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
