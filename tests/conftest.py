import functools
import gc
import os
import random
import signal
import sys

# A job in the background ignores Ctrl-C, and so would every process that a test starts and sends one to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run two at a time on two cores; more threads than that only make them wait for each other. Said before torch and
# NumPy are imported, and handed on to the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# TRL tells the hub of every trainer that is made; tests need no network and use none.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

import soak
from forked import run_module
from short_timing import shorten_timing

# Two workers and the hundreds of processes that tests start import the same files: each would compile them again where
# the surroundings forbid to keep what was compiled.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # until all is collected: what is imported stays

try:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
except ModuleNotFoundError:  # `make pythons` tests what does without it
    torch = None  # type: ignore[assignment]

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # a machine that others use too is no failure

TOGETHER = {
    "forked": (
        "seeds/", "posttrain/", "faults/", "test_bench.py", "test_docs.py", "test_examples.py", "clients/test_ranks.py",
        "references/test_bits.py",
    ),
    "trainers": ("session/test_frameworks.py", "clients/test_trainers.py", "integrations/"),
    "training": ("training/", "analysis/test_trl.py"),
    "audits": ("report/audit/", "findings/test_audit.py", "probes/bits/", "probes/robustness/", "model/bits/"),
    "stories": ("findings/test_telemetry_story.py",),
    "grokking": ("demo/", "findings/examples/test_grokking.py"),
    "imports": ("importing/",),
    "browser": ("browser/",),
    "names": ("contract/test_names.py", "test_architecture.py"),
}  # fmt: skip
"""Files that one worker runs, as each worker would build again what they share: models, a browser, a process to fork
from."""
OF_EXTRAS = ("transformers", "peft", "torchao")
COUNTED: set[str] = set()
"""The long tests of this run that have counted something."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By place: xdist's own groups are suffixes of node ids, which pytest 9.2 no longer lets it add."""
    from xdist.scheduler import LoadScopeScheduling

    gc.enable()  # this process collects no tests
    config.option.loadscopereorder = False  # by their number of tests: the order of collection has long groups first

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or nodeid.split("::")[0]

    return ByGroup(config, log)


def group_of(nodeid: str) -> str | None:
    """The group of `TOGETHER` that a test is of."""
    place = nodeid.removeprefix("tests/")
    return next((group for group, places in TOGETHER.items() if place.startswith(places)), None)


@contextmanager
def _skipped_without_extras() -> Iterator[None]:
    """Where a package of an extra is not installed, as in `make lowest`, what needs it is skipped by name."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in OF_EXTRAS or find_spec(error.name) is not None:
            raise
        pytest.skip(f"{error.name} is not installed here")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    with _skipped_without_extras():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    with _skipped_without_extras():
        return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a long test has counted; in the process that reports all tests, not in its workers."""
    counted = report.when == "call" and report.passed and "soak" in report.keywords and report.user_properties
    if counted and "PYTEST_XDIST_WORKER" not in os.environ:
        counts: Counter[str] = Counter()
        for name, number in report.user_properties:
            counts[name] += int(number)  # type: ignore[call-overload]
        soak.keep(report.nodeid, counts, report.duration)
        COUNTED.add(report.nodeid.partition("[")[0])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTED:
        terminalreporter.section("counted", sep="-")
        terminalreporter.write(soak.table({test: cases for test, cases in soak.read().items() if test in COUNTED}))
        terminalreporter.write_line(f"kept, with those of other runs, in {os.path.relpath(soak.KEPT)}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests of each, in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker makes the same order from the same seed; a file's tests stay together, as they share fixtures.

    Without a seed, groups come first: they take longest, and one that begins last would keep one worker busy alone.
    """
    first = list(TOGETHER)
    items.sort(key=lambda item: first.index(group) if (group := group_of(item.nodeid)) else len(first))
    if (seed := config.getoption("--shuffle")) is not None:
        draw = random.Random(seed)
        files: dict[str, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.nodeid.split("::")[0], []).append(item)
        groups = list(files.values())
        draw.shuffle(groups)
        for group in groups:
            draw.shuffle(group)
        items[:] = [item for group in groups for item in group]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Doctests are those of the package: to look for some here takes every worker seconds, and imports every helper."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported stays: collections need not go through it again and again
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _one_look_at_git() -> Iterator[None]:
    """Two processes for every session that a test opens, of which there are thousands."""
    if torch is None:
        yield
        return
    from learnscope.session import manifest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "_git", functools.cache(manifest._git))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Files are handed to the disk at once for the case of a power failure, which no test can cause: thousands of waits
    of some milliseconds each. (So it is in programs that are forked; those that tests start do wait.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        yield


@pytest.fixture(scope="session")
def grokked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the demo's run that groks, in full length; to be read, not to be written."""
    from learnscope.demo.grokking import train_grokking

    folder = tmp_path_factory.mktemp("grokked") / "run"
    with torch.random.fork_rng(devices=[]):
        train_grokking(folder, False, lambda *_: None)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _forked_passes() -> Iterator[None]:
    """The memory of a pass is measured in a process that is forked, not started: its imports take seconds.
    (In tests/model/cost/test_memory.py it is started, as for users.)"""
    if torch is None:
        yield
        return
    from learnscope.model.cost import memory

    forking = SimpleNamespace(run=run_module, TimeoutExpired=memory.subprocess.TimeoutExpired)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "subprocess", forking)
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_timing() -> Iterator[None]:
    """In every process that tests run in. (In tests/model/cost/ the budgets themselves are tested, whole.)"""
    if torch is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        shorten_timing(patch.setattr)
        yield


@pytest.fixture(autouse=True)
def _same_start() -> None:
    if torch is not None:
        # `torch.manual_seed` writes down the whole stack for every kind of device that is not there
        torch.default_generator.manual_seed(0)
