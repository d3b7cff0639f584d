"""Programs in processes of their own, forked from one that has the large packages: importing torch takes seconds."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
# Nothing of ours: every program imports learnscope itself, and of it only what it names.
FORKS.set_forkserver_preload(
    [
        "torch", "torch._dynamo", "sklearn.datasets", "matplotlib.figure", "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.llama.modeling_llama", "peft", "trl.trainer.sft_trainer", "trl.trainer.grpo_trainer",
    ]
)  # fmt: skip


def start_program(
    program: Path, *arguments: str, folder: Path, out: Path, error: Path, strict: bool = False, audits: bool = False
) -> ForkServerProcess:
    """As `python program arguments >out 2>error` in that folder; if `strict`, a warning of a probe is an error.

    One that `audits` times models for less long."""
    process = FORKS.Process(target=_run, args=(program, arguments, folder, strict, out, error, audits))
    process.start()
    return process


def run_program(
    program: Path, *arguments: str, folder: Path, strict: bool = False, audits: bool = False, timeout: float = 300
) -> CompletedProcess[str]:
    """The same to its end, with what it printed."""
    with tempfile.TemporaryDirectory() as printed:
        out, error = Path(printed, "out"), Path(printed, "error")
        files = {"out": out, "error": error}
        process = start_program(program, *arguments, folder=folder, **files, strict=strict, audits=audits)
        process.join(timeout)
        status = process.exitcode
        process.kill()
        assert status is not None, f"{program.name} takes more than {timeout} seconds"
        return CompletedProcess([str(program), *arguments], status, out.read_text(), error.read_text())


def wait_until(happened: Callable[[], bool], process: ForkServerProcess, error: Path, timeout: float = 120) -> None:
    """Until something is seen of a program that runs; fails if that ends before, or takes longer."""
    stop = time.monotonic() + timeout
    while not happened():
        assert process.is_alive(), error.read_text()
        if time.monotonic() > stop:
            process.kill()
            raise AssertionError(f"nothing is seen of the program after {timeout} seconds: {error.read_text()}")
        time.sleep(0.01)


def run_module(command: Sequence[str], **_options: Any) -> CompletedProcess[str]:
    """In place of `subprocess.run([python, "-P", "-m", module, *arguments])`."""
    assert command[:3] == [sys.executable, "-P", "-m"], command
    return run_program(_source(command[3]), *command[4:], folder=Path.cwd())


def _source(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _forking(run: Callable[..., Any]) -> Callable[..., Any]:
    """`subprocess.run` for programs that were forked themselves: the pass whose memory is measured is forked too,
    except with several threads: OpenMP waits for ever in a child whose parent has used them."""

    def chosen(command: Any, *arguments: Any, **options: Any) -> Any:
        measured = list(command[1:4]) == ["-P", "-m", "learnscope.model.cost.memory_child"]
        if not measured or os.environ.get("OMP_NUM_THREADS") != "1":
            return run(command, *arguments, **options)
        with tempfile.TemporaryDirectory() as printed:
            out, error = Path(printed, "out"), Path(printed, "error")
            child = os.fork()
            if child == 0:
                try:
                    _run(_source(command[3]), tuple(command[4:]), Path.cwd(), False, out, error)
                finally:
                    os._exit(0)  # what it printed says whether it went well
            os.waitpid(child, 0)
            return CompletedProcess(command, 0, out.read_text(), error.read_text())

    return chosen


def _run(
    program: Path, arguments: tuple[str, ...], folder: Path, strict: bool, out: Path, error: Path, audits: bool = False
) -> None:
    subprocess.run = _forking(subprocess.run)
    os.fsync = lambda _file: None  # it is for power failures, which no test causes, and takes milliseconds each time
    for place, path in ((1, out), (2, error)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), place)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.parent))
    if strict:
        import learnscope

        warnings.filterwarnings("error", category=learnscope.ProbeWarning)
    if audits:
        from short_timing import shorten_timing

        shorten_timing()
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a forked process ends without them, a program does not
