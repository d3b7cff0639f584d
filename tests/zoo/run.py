"""Run the zoo and print what the findings say of each case.

    python tests/zoo/run.py [--only NAME …] [--faults | --healthy]
        [--half tuning|judged|unseen|blind|second|third|fourth|fifth]
        [-j 2] [--quick] [--keep] [--again FILE] [--trainings FOLDER]

`--only` takes parts of names. `--quick` runs the first seed of each case. The verdicts are written as JSON, by default
to runs/zoo.json; with `--keep`, as `make zoo` does, to docs/zoo.json, and the table into docs/diagnosis.md. `--again`
runs nothing and takes the verdicts of a file. With `--trainings` every training is kept in that folder, and one that is
there already is only judged again: to see what a change of the findings does, in a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # said before torch is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[:1] = [str(ROOT / "tests")]  # in place of this folder

from collections.abc import Iterator  # noqa: E402
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: E402
from itertools import zip_longest  # noqa: E402
from multiprocessing import get_context  # noqa: E402

from zoo.judge import Verdict  # noqa: E402
from zoo.keeper import run_case  # noqa: E402
from zoo.registry import Case, collect  # noqa: E402
from zoo.table import PARTS, as_json, as_text, as_verdict, line, write_page  # noqa: E402


def chosen(options: argparse.Namespace) -> list[Case]:
    return [
        case
        for case in collect().values()
        if (not options.only or any(part.lower() in case.name.lower() for part in options.only))
        and not (options.faults and case.healthy)
        and not (options.healthy and not case.healthy)
        and options.half in (None, case.half)
    ]


def run_all(work: list[tuple[str, int]], jobs: int, room: Path | None) -> Iterator[Verdict]:
    if jobs <= 1:
        yield from (run_case(name, seed, room) for name, seed in work)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_case, name, seed, room) for name, seed in work]):
            yield done.result()


def work(cases: list[Case], quick: bool) -> list[tuple[str, int]]:
    """First seeds first."""
    rounds = zip_longest(*([(case.name, seed) for seed in case.seeds[: 1 if quick else None]] for case in cases))
    return [one for several in rounds for one in several if one is not None]


def earlier(path: Path) -> list[Verdict]:
    return [as_verdict(row) for row in json.loads(path.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--faults", action="store_true")
    which.add_argument("--healthy", action="store_true")
    parser.add_argument("--half", choices=PARTS)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--json", type=Path, default=ROOT / "runs" / "zoo.json")
    parser.add_argument("--keep", action="store_true", help="in docs/")
    parser.add_argument("--again", type=Path, help="verdicts of an earlier run")
    parser.add_argument("--trainings", type=Path, help="kept there, and judged again if they are there")
    options = parser.parse_args()
    cases = chosen(options)
    kept = ROOT / "docs" / "zoo.json" if options.keep else options.json
    kept.parent.mkdir(parents=True, exist_ok=True)
    verdicts = []
    trainings = work(cases, options.quick)
    for verdict in earlier(options.again) if options.again else run_all(trainings, options.jobs, options.trainings):
        verdicts.append(verdict)
        verdicts.sort(key=lambda one: (one.name, one.seed))
        print(line(verdict), flush=True)
        kept.write_text(as_json(verdicts))  # each time: what an interrupt leaves can be read
    print("\n" + as_text(cases, verdicts))
    if options.keep:
        write_page(ROOT / "docs" / "diagnosis.md", cases, verdicts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
