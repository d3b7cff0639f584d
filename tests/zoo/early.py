"""How early a cause is named, beside the loss itself: what the records until each step give, over many seeds.

    python tests/zoo/early.py [--seeds 30] [-j 2]

A training of the zoo is cut off after every few steps, and the findings of each beginning are made: the first alarm
that names the cause, and the first that rests on the course of the loss alone. Their difference is the lead, in steps.
The same is done with healthy trainings: any alarm at any of their beginnings is a false one. The table is written into
docs/diagnosis.md; an alarm whose lead is not above 0 is one of the loss, and no page calls it early.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
PAGE = ROOT / "docs" / "diagnosis.md"
BEGIN, END = "<!-- early: written by tests/zoo/early.py -->\n", "<!-- end of early -->\n"
OF_THE_LOSS = {
    "diverging", "loss_spike", "bad_batch", "not_learning", "worsening", "nonfinite", "plateau", "overfitting",
}  # fmt: skip
FAULTS = (
    "learning rate too high, SGD", "weights drawn too large, MLP", "zero_grad forgotten, MLP",
    "softmax applied twice, MLP",
)  # fmt: skip
HEALTHY = ("classification, MLP on digits", "regression, targets × 100")
BEGINNINGS = (20, 30, 40, 60, 80, 100, 150)


def beginnings(folder: Path, room: Path) -> list[tuple[int, list[str]]]:
    """The alarms of each beginning: their kinds, causes that are listed and what they take in."""
    import learnscope as ls

    lines = [(json.loads(line)["step"], line) for line in (folder / "records.jsonl").read_text().splitlines()]
    manifest, found = json.loads((folder / "run.json").read_text()), []
    for attempt in manifest["attempts"]:
        attempt.pop("records", None)  # how many there were in the end
    for last in [step for step in BEGINNINGS if step <= lines[-1][0]]:
        part = room / f"until-{last}"
        part.mkdir()
        (part / "run.json").write_text(json.dumps(manifest))
        if (folder / "arrays").is_dir():
            (part / "arrays").symlink_to(folder / "arrays")
        (part / "records.jsonl").write_text("".join(f"{line}\n" for step, line in lines if step <= last))
        alarms = [finding for finding in ls.open_run(part).findings() if finding.severity != "info"]
        kinds = [each.kind for alarm in alarms for each in (alarm, *alarm.taken_in)]
        found.append((last, kinds))
    return found


def one(name: str, seed: int) -> list[tuple[int, list[str]]]:
    import torch

    import learnscope as ls
    from zoo.registry import collect

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as room, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        collect()[name].script(partial(ls.watch, run=Path(room) / "run"), seed)
        return beginnings(Path(room) / "run", Path(room))


def first_with(found: Sequence[tuple[int, list[str]]], kinds: set[str]) -> float:
    return next((step for step, said in found if kinds & set(said)), np.inf)


def lead(found: Sequence[tuple[int, list[str]]], causes: set[str]) -> float:
    """Steps from the alarm that names the cause to the first of the loss alone; a side that never comes is the end."""
    end = found[-1][0] + 10
    return min(first_with(found, OF_THE_LOSS - causes), end) - min(first_with(found, causes), end)


def fault_row(name: str, causes: set[str], runs: Sequence[Sequence[tuple[int, list[str]]]]) -> str:
    leads = np.array([lead(found, causes) for found in runs])
    named = [first_with(found, causes) for found in runs]
    draws = np.random.default_rng(0).choice(leads, (2000, len(leads))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    told = sum(np.isfinite(named))
    first = f"{np.median([step for step in named if np.isfinite(step)]):.0f}" if told else "–"
    verdict = "early" if low > 0 else "no earlier than the loss"
    return f"| {name} | {told} of {len(runs)} | {first} | {leads.mean():.0f} ({low:.0f} to {high:.0f}) | {verdict} |"


def healthy_row(name: str, runs: Sequence[Sequence[tuple[int, list[str]]]]) -> str:
    alarmed = [sorted({kind for _, kinds in found for kind in kinds}) for found in runs]
    bad = [kinds for kinds in alarmed if kinds]
    said = ", ".join(sorted({kind for kinds in bad for kind in kinds})) or "–"
    return f"| {name} | {len(bad)} of {len(runs)} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("-j", type=int, default=2)
    options = parser.parse_args()
    from zoo.registry import collect

    cases = collect()
    missing = [name for name in (*FAULTS, *HEALTHY) if name not in cases]
    if missing:
        sys.exit(f"the zoo has no {missing}")
    with ProcessPoolExecutor(options.j, mp_context=get_context("spawn")) as pool:
        futures = {n: [pool.submit(one, n, s) for s in range(options.seeds)] for n in (*FAULTS, *HEALTHY)}
        runs = {name: [future.result() for future in waiting] for name, waiting in futures.items()}
    lines = [
        f"Of {options.seeds} seeds each; a beginning ends at {', '.join(map(str, BEGINNINGS))} steps.\n",
        "| fault | cause named in | at step (median) | lead over the loss's own alarm, steps (95 %) | |",
        "|---|---|---|---|---|",
        *(fault_row(name, set(cases[name].causes), runs[name]) for name in FAULTS),
        "",
        "| healthy training | alarmed at any beginning | by |",
        "|---|---|---|",
        *(healthy_row(name, runs[name]) for name in HEALTHY),
        "",
    ]
    print("\n".join(lines))
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
