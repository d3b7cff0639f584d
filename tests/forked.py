"""Programs in processes of their own, forked from one that has the large packages: importing torch takes seconds."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from subprocess import CompletedProcess

FORKS = multiprocessing.get_context("forkserver")
# Nothing of ours: every program imports learnscope itself, and of it only what it names.
FORKS.set_forkserver_preload(["torch", "torch._dynamo", "sklearn.datasets", "matplotlib.figure"])


def run_program(
    program: Path, *arguments: str, folder: Path, strict: bool = False, timeout: float = 300
) -> CompletedProcess[str]:
    """As `python program arguments` in that folder; if `strict`, a warning of a probe is an error."""
    with tempfile.TemporaryDirectory() as printed:
        out, error = Path(printed, "out"), Path(printed, "error")
        process = FORKS.Process(target=_run, args=(program, arguments, folder, strict, out, error))
        process.start()
        process.join(timeout)
        status = process.exitcode
        process.kill()
        assert status is not None, f"{program.name} takes more than {timeout} seconds"
        return CompletedProcess([str(program), *arguments], status, out.read_text(), error.read_text())


def _run(program: Path, arguments: tuple[str, ...], folder: Path, strict: bool, out: Path, error: Path) -> None:
    for place, path in ((1, out), (2, error)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), place)
    os.chdir(folder)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.parent))
    if strict:
        import learnscope

        warnings.filterwarnings("error", category=learnscope.ProbeWarning)
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a forked process ends without them, a program does not
