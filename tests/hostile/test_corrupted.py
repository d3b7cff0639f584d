"""Corrupted run folders: an error of ours that says where, or what is left of the run; never a foreign exception."""

from __future__ import annotations

import json
import shutil
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import learnscope as ls
from hostile.corrupted import copy_of, corrupt, sound_run
from learnscope.live.pages import Page
from learnscope.live.shelf import Shelf
from learnscope.report.as_json import report_json

OURS = (ls.RunError,)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture(scope="module")
def compacted(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_of(sound, tmp_path_factory.mktemp("compacted") / "run")
    ls.open_run(folder).compact()
    return folder


def resumed(folder: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    ls.watch(model, optimizer, run=folder, probes=[ls.LearningRate(every=1)], resume=True).close()


def live_page(folder: Path) -> None:
    shelf = Shelf([folder.parent])
    if folder.name not in shelf.names():
        raise ls.RunError("not a run: the server answers that there is none of this name")
    Page(shelf, [folder.name], "server").packed()


def as_json(folder: Path) -> None:
    run = ls.open_run(folder)
    json.dumps(report_json(run, run.findings(), name="run"), allow_nan=False)


READ: dict[str, Callable[[Path], Any]] = {
    "records": lambda folder: list(ls.open_run(folder).records()),
    "problems": lambda folder: ls.open_run(folder).problems,
    "frame": lambda folder: ls.open_run(folder).frame(),
    "superseded": lambda folder: ls.open_run(folder).frame(superseded=True),
    "findings": lambda folder: ls.open_run(folder).findings(),
    "arrays": lambda folder: ls.open_run(folder).arrays("Holdout"),
    "examples": lambda folder: ls.open_run(folder).examples(),
    "page": lambda folder: ls.open_run(folder).page(folder.parent / "page"),
    "query": lambda folder: ls.query("select run, probe, count(*), sum(value) from records group by all", folder),
    "runs": lambda folder: ls.query("select * from runs", folder),
    "report": lambda folder: ls.open_run(folder).report(folder.parent / "report"),
    "checks": lambda folder: ls.open_run(folder).checks(),
    "json": as_json,
    "comparison": lambda folder: ls.compare([folder, folder]).page(folder.parent / "compared"),
    "live": live_page,
    "live list": lambda folder: Page(Shelf([folder.parent]), [], "server").packed(),
    "compare": lambda folder: ls.compare([folder, folder]).markdown(),
    "compact": lambda folder: ls.open_run(folder).compact(),
    "resume": resumed,
}
SLOW = {"report", "compare", "page", "comparison", "live", "live list", "json"}
SEEDS = range(20)
PIECE, LONG = 250, {"lines": range(1000, 8000), "compacted": range(10_000, 13_000)}
"""The seeds of the long test, and how many one test takes of them."""
PIECES = [(form, start) for form, seeds in LONG.items() for start in seeds[::PIECE]]


def attempt(folder: Path, names: list[str]) -> dict[str, str]:
    """What each way of reading ended in: `read`, `refused`, or a foreign exception with its traceback."""
    ends = {}
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                READ[name](folder)
                ends[name] = "read"
            except OURS as error:
                ends[name] = "refused" if str(error).strip() else "an error without a word"
            except KeyError as error:  # of arrays, examples: nothing of the kind was recorded
                ends[name] = (
                    "read"
                    if "recorded no arrays" in str(error) or "no examples" in str(error)
                    else traceback.format_exc()
                )
            except Exception:  # noqa: BLE001  (what is looked for)
                ends[name] = traceback.format_exc()
    return ends


def fuzz(base: Path, room: Path, seeds: range, *, slow_every: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    foreign = []
    for seed in seeds:
        folder = copy_of(base, room / str(seed) / "run")
        done = corrupt(folder, seed)
        names = [name for name in READ if name not in SLOW or seed % slow_every == 0]
        for name, end in attempt(folder, names).items():
            counts[end if end in ("read", "refused") else "foreign"] += 1
            if end not in ("read", "refused"):
                foreign.append(f"{name} of {done}:\n{end}")
        shutil.rmtree(room / str(seed))
    assert not foreign, f"{len(foreign)} foreign exceptions; the first of each kind:\n" + "\n".join(kinds_of(foreign))
    return counts


def kinds_of(texts: list[str]) -> list[str]:
    return list(
        {text.strip().splitlines()[-1][:60] + text.strip().splitlines()[-3][:90]: text for text in texts}.values()
    )


@pytest.mark.parametrize("form", ["lines", "compacted"])
def test_a_corrupted_folder_is_read_or_refused(form: str, sound: Path, compacted: Path, tmp_path: Path) -> None:
    fuzz(sound if form == "lines" else compacted, tmp_path, SEEDS, slow_every=20)


@pytest.mark.soak
@pytest.mark.parametrize(("form", "start"), PIECES, ids=[f"{form}-{start}:{start + PIECE}" for form, start in PIECES])
def test_many_corrupted_folders(
    form: str, start: int, sound: Path, compacted: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each seed is another damage: a piece gives the same result whenever and beside whatever it is run."""
    counts = fuzz(sound if form == "lines" else compacted, tmp_path, range(start, start + PIECE), slow_every=50)
    record_property("corrupted folders", PIECE)
    for end, number in sorted(counts.items()):
        record_property(f"ways {end}", number)
