"""What other projects say of the zoo: trainings with one planted fault each, and healthy ones (tests/zoo/).

    python bench/zoo.py [--quick] [--only NAME …] [--peers torch_audit …] [--seeds 1] [--keep | --table]

Each project watches the same scripts, in the environment of bench/peers.py (made in the cache at first use), and is
judged the same way, by a mapping of its rules to the kinds of the zoo (bench/peers/zoo_watchers.py). `--keep` runs the
peers alone, keeps their verdicts in docs/zoo_peers.json and writes the table into docs/diagnosis.md, with learnscope's
own of docs/zoo.json (`make zoo`) on the same seeds; `--table` writes the table alone.

traincheck is not measured: it rewrites a script to trace it, and judges the trace by invariants that it has inferred
from another run, of which a case of the zoo has none.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

BENCH = Path(__file__).parent
TESTS = BENCH.parent / "tests"
sys.path.insert(0, str(BENCH))
from peers.environments import NotInstalled, Peer, environment  # noqa: E402

sys.path.insert(0, str(TESTS))  # before this folder, where this file has the name of the package
from zoo.judge import Verdict  # noqa: E402
from zoo.registry import Case, collect  # noqa: E402
from zoo.table import as_verdict, figures, line  # noqa: E402

OWN = "learnscope"
PEERS = (
    Peer("torch_audit", "torch-audit", "0.3.0", "all checks at every step"),
    Peer("trainproof", "trainproof", "0.22.0", "a log of every tenth step"),
    Peer("trainscope", "trainscope", "1.8.1", "its defaults"),
)
DOCS = BENCH.parent / "docs"
PAGE, OWN_KEPT, PEERS_KEPT = DOCS / "diagnosis.md", DOCS / "zoo.json", DOCS / "zoo_peers.json"
BEGIN, END = "<!-- peers: written by bench/zoo.py -->\n", "<!-- end of peers -->\n"
SOME = ["learning rate zero, MLP", "zero_grad forgotten, MLP", "dead ReLUs, MLP", "classification, MLP on wine"]


def verdicts_of(python: Path, watcher: str, only: Sequence[str], seeds: int) -> Iterator[Verdict]:
    """The runs of one project, as they end."""
    path = os.pathsep.join([str(TESTS), str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [
        str(python),
        "-m",
        "peers.zoo_side",
        watcher,
        "--seeds",
        str(seeds),
        *(["--only", *only] if only else []),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environ, cwd=folder) as process,
    ):
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("verdict "):
                yield Verdict(**json.loads(text.partition(" ")[2]))
        if process.wait():
            said.seek(0)
            raise RuntimeError((said.read().strip().splitlines() or ["it said nothing"])[-1])


def table(cases: Sequence[Case], all_verdicts: dict[str, list[Verdict]]) -> str:
    """A column a project, a row a figure."""
    columns = {name: figures(cases, verdicts) for name, verdicts in all_verdicts.items()}
    rows = [title for title, *_ in next(iter(columns.values()))]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for number, title in enumerate(rows):
        lines.append(f"| {title} | {' | '.join(column[number][-1] for column in columns.values())} |")
    return "\n".join(lines) + "\n"


def keep(taken: dict[str, list[Verdict]], path: Path = PEERS_KEPT) -> None:
    """In place of what those projects had; a line a run."""
    body = json.loads(path.read_text()) if path.is_file() else {}
    body |= {name: [dataclasses.asdict(one) | {"titles": []} for one in verdicts] for name, verdicts in taken.items()}
    parts = [
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in sorted(body.items())
    ]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def write_page(page: Path = PAGE) -> None:
    """Learnscope's own verdicts are those of the runs that the peers have seen too."""
    peers = {name: [as_verdict(row) for row in rows] for name, rows in json.loads(PEERS_KEPT.read_text()).items()}
    seen = {(one.name, one.seed) for verdicts in peers.values() for one in verdicts}
    own = [one for one in map(as_verdict, json.loads(OWN_KEPT.read_text())) if (one.name, one.seed) in seen]
    before, _, rest = page.read_text().partition(BEGIN)
    text = table(list(collect().values()), {OWN: own, **peers})
    page.write_text(before + BEGIN + text + END + rest.partition(END)[2])


def sides(options: argparse.Namespace) -> Iterator[tuple[str, str, Path]]:
    """A name to print, the watcher and its interpreter; what could not be installed is said."""
    if not options.keep:
        yield OWN, OWN, Path(sys.executable)
    for peer in () if options.quick else PEERS:
        if options.peers and peer.watcher not in options.peers:
            continue
        try:
            yield (
                f"{peer.package} {peer.version}",
                peer.watcher,
                environment(peer, options.cache.expanduser().absolute()),
            )
        except NotInstalled as error:
            print(f"not measured: {peer.package} {peer.version}: it could not be installed: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cases, nothing installed: does it run")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--peers", nargs="*", default=[], choices=[peer.watcher for peer in PEERS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="in docs/")
    parser.add_argument("--table", action="store_true", help="write the table of what is kept, and run nothing")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "learnscope-peers"
    parser.add_argument("--cache", type=Path, default=cache, help="where the environments of peers are kept")
    options = parser.parse_args()
    if options.table:
        write_page()
        return 0
    only = SOME if options.quick and not options.only else options.only
    taken: dict[str, list[Verdict]] = {}
    for name, watcher, python in sides(options):
        taken[name] = []
        for verdict in verdicts_of(python, watcher, only, options.seeds):
            taken[name].append(verdict)
            print(f"{name}: {line(verdict)}", flush=True)
    print("\n" + table(list(collect().values()), taken))
    if options.keep:
        keep(taken)
        write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
