"""Corrupted run folders: an error of ours that says where, or what is left of the run; never a foreign exception."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import pytest

import learnscope as ls
from hostile.corrupted import SAVED, STEPS, Loop, copy_of, corrupt, sound_run
from hostile.limits import Hang, limited
from learnscope.comparison.compared import Comparison
from learnscope.findings.checks import checks_of
from learnscope.live.pages import Page
from learnscope.live.shelf import Shelf
from learnscope.reading.gather import OnePass, one_pass
from learnscope.report.as_json import report_json
from learnscope.run import findings_in

OURS = (ls.RunError, ls.CheckpointError)
SECONDS = 60.0
"""For one way of reading, which takes a second at most where nothing else runs."""
BOTH = """
    select * from runs left join (select run, probe, count(*), sum(value) from records group by all) using (run)
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture(scope="module")
def compacted(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_of(sound, tmp_path_factory.mktemp("compacted") / "run")
    ls.open_run(folder).compact()
    return folder


class Damaged:
    """A folder under test. Ways of reading that first read all records share that pass, as a report does."""

    def __init__(self, folder: Path, sound: Path) -> None:
        self.folder, self.sound = folder, sound

    @property
    def compared(self) -> Comparison:
        """With a sound run: a run is not compared with itself."""
        return ls.compare([self.folder, self.sound])

    @property
    def run(self) -> ls.Run:
        return ls.open_run(self.folder)

    @cached_property
    def read_once(self) -> OnePass:
        return one_pass(self.run)


def queried(folder: Path) -> None:
    """Both tables at once, as opening a database takes longer than to read them; alone if the records are refused."""
    try:
        ls.query(BOTH, folder)
    except ls.RunError:
        ls.query("select * from runs", folder)
        raise


def live_page(folder: Path) -> None:
    shelf = Shelf([folder.parent])
    if folder.name not in shelf.names():
        raise ls.RunError("not a run: the server answers that there is none of this name")
    Page(shelf, [folder.name], "server").packed()


def as_json(damaged: Damaged) -> None:
    run = damaged.read_once
    json.dumps(report_json(run, findings_in(run), name="run"), allow_nan=False)


READ: dict[str, Callable[[Damaged], Any]] = {
    "records": lambda it: list(it.run.records()),
    "problems": lambda it: it.run.problems,
    "frame": lambda it: it.run.frame(),
    "superseded": lambda it: it.run.frame(superseded=True),
    "findings": lambda it: findings_in(it.read_once),
    "checks": lambda it: checks_of(it.read_once),
    "arrays": lambda it: it.run.arrays("Holdout"),
    "examples": lambda it: it.run.examples(),
    "weights": lambda it: it.run.export_patch(SAVED, STEPS, it.folder.parent / "patch.safetensors"),
    "query": lambda it: queried(it.folder),
    "page": lambda it: it.run.page(it.folder.parent / "page"),
    "report": lambda it: it.run.report(it.folder.parent / "report"),
    "json": as_json,
    "comparison": lambda it: it.compared.page(it.folder.parent / "compared"),
    "live": lambda it: live_page(it.folder),
    "live list": lambda it: Page(Shelf([it.folder.parent]), [], "server").packed(),
    "compare": lambda it: it.compared.to_json(),
    "compact": lambda it: it.run.compact(),
    "resume": lambda it: Loop(it.folder, resume=True).session.close(),
}
SLOW = {"report", "compare", "page", "comparison", "live", "live list", "json"}
SEEDS = range(20)
TOGETHER = 10
"""Damaged folders that there are at a time."""
PIECE, LONG = 250, {"lines": range(1000, 8000), "compacted": range(10_000, 13_000)}
"""The seeds of the long test, and how many one test takes of them."""
PIECES = [(form, start) for form, seeds in LONG.items() for start in seeds[::PIECE]]


def attempt(damaged: Damaged, names: Iterable[str], terminal: TextIO) -> dict[str, str]:
    """What each way of reading ended in."""
    return {name: ended(lambda way=READ[name]: way(damaged), terminal) for name in names}


def ended(read: Callable[[], object], terminal: TextIO, seconds: float = SECONDS) -> str:
    """`read`, `refused`, or a foreign exception or a hang with its traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limited(seconds, terminal):
                read()
            return "read"
        except OURS as error:
            return "refused" if str(error).strip() else "an error without a word"
        except KeyError as error:  # of arrays, examples: nothing of the kind was recorded
            nothing = "recorded no arrays" in str(error) or "no examples" in str(error)
            return "read" if nothing else traceback.format_exc()
        except (Exception, Hang):  # noqa: BLE001  (what is looked for)
            return traceback.format_exc()


def fuzz(base: Path, room: Path, seeds: range, terminal: TextIO, *, slow_every: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    foreign = []
    for start in range(0, len(seeds), TOGETHER):
        folders = {seed: copy_of(base, room / str(seed) / "run") for seed in seeds[start : start + TOGETHER]}
        done = {seed: corrupt(folder, seed) for seed, folder in folders.items()}
        queried = queried_together(list(folders.values()), terminal)
        for seed, folder in folders.items():
            names = [name for name in READ if name not in SLOW or seed % slow_every == 0]
            ends = dict.fromkeys(["query"] if folder in queried else [], "read")
            ends |= attempt(Damaged(folder, base), [name for name in names if name not in ends], terminal)
            counts.update(end if end in ("read", "refused") else "foreign" for end in ends.values())
            foreign += [f"{n} of {done[seed]}:\n{e}" for n, e in ends.items() if e not in ("read", "refused")]
            shutil.rmtree(room / str(seed))
    assert not foreign, f"{len(foreign)} foreign exceptions; the first of each kind:\n" + "\n".join(kinds_of(foreign))
    return counts


def queried_together(folders: list[Path], terminal: TextIO) -> set[Path]:
    """Those that one query has read, as opening a database takes longer than to read ten of these folders: all that
    open at all, or none if the query ended in any error. The others are to be queried one by one."""
    there = [folder for folder in folders if ended(lambda at=folder: ls.open_run(at), terminal) == "read"]
    read = ended(lambda: ls.query(BOTH, there), terminal) == "read" if there else False
    return set(there) if read else set()


def kinds_of(texts: list[str]) -> list[str]:
    return list(
        {text.strip().splitlines()[-1][:60] + text.strip().splitlines()[-3][:90]: text for text in texts}.values()
    )


@pytest.fixture
def terminal(capfd: pytest.CaptureFixture[str]) -> Iterator[TextIO]:
    """Where the traceback of a process goes that is ended because it hangs; what pytest captures would be lost."""
    with capfd.disabled():
        handle = os.dup(2)
    with open(handle, "w") as file:
        yield file


@pytest.mark.parametrize("form", ["lines", "compacted"])
def test_a_corrupted_folder_is_read_or_refused(
    form: str, sound: Path, compacted: Path, tmp_path: Path, terminal: TextIO
) -> None:
    fuzz(sound if form == "lines" else compacted, tmp_path, SEEDS, terminal, slow_every=20)


@pytest.mark.parametrize("form", ["lines", "compacted"])
def test_every_way_reads_a_sound_folder(
    form: str, sound: Path, compacted: Path, tmp_path: Path, terminal: TextIO
) -> None:
    base = sound if form == "lines" else compacted
    ends = attempt(Damaged(copy_of(base, tmp_path / "run"), base), READ, terminal)
    assert ends == dict.fromkeys(READ, "read")


def test_a_way_of_reading_that_hangs_is_a_failure(terminal: TextIO) -> None:
    def hangs() -> None:
        while True:
            with suppress(Exception):
                time.sleep(1)

    assert "Hang: took more than 0.1 seconds" in ended(hangs, terminal, seconds=0.1)


def test_compiled_code_that_hangs_ends_the_process_with_its_traceback() -> None:
    code = """if True:
        import signal, sys, time
        from hostile.limits import limited
        def hangs():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # as if it never came back to Python
            time.sleep(600)
        with limited(0.1, sys.stderr):
            hangs()
    """
    tests = str(Path(__file__).parents[1])
    ended = subprocess.run([sys.executable, "-c", code], cwd=tests, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "in hangs" in ended.stderr


@pytest.mark.soak
@pytest.mark.parametrize(("form", "start"), PIECES, ids=[f"{form}-{start}:{start + PIECE}" for form, start in PIECES])
def test_many_corrupted_folders(
    form: str, start: int, sound: Path, compacted: Path, tmp_path: Path, terminal: TextIO,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    """Each seed is another damage: a piece gives the same result whenever and beside whatever it is run."""
    base = sound if form == "lines" else compacted
    counts = fuzz(base, tmp_path, range(start, start + PIECE), terminal, slow_every=50)
    record_property("corrupted folders", PIECE)
    for end, number in sorted(counts.items()):
        record_property(f"ways {end}", number)
