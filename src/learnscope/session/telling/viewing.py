"""`ls.watch(..., view=True)`: the live page of the run, in a process of its own that ends with this one."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from learnscope.store.backend import Backend, FolderBackend

HOST, PORT = "127.0.0.1", 8420
_started: list[subprocess.Popen[bytes]] = []


def check_view(run: str | Path | None) -> None:
    """Refuse what cannot be shown, before anything is written."""
    if run is None:
        raise ValueError("view=True shows a run folder: name one, run='runs/a'")
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ImportError(f"view=True needs {' and '.join(missing)}: pip install 'learnscope[dashboard]'")


def start_view(backend: Backend) -> str:
    """Start the page of a run folder; returns its address. Another process: it takes no time of the training's."""
    assert isinstance(backend, FolderBackend)
    port = _free_port()
    source = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "learnscope.cli", "view", str(backend.path.resolve()), "--with-parent"]
    process = subprocess.Popen(
        [*command, "--host", HOST, "--port", str(port)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    if not _started:
        atexit.register(_end)
    _started.append(process)
    return f"http://{HOST}:{port}/"


def _free_port() -> int:
    """The usual port, or any that is free."""
    for port in (PORT, 0):
        try:
            with socket.create_server((HOST, port)) as free:
                return int(free.getsockname()[1])
        except OSError:
            continue
    raise OSError(f"there is no free port at {HOST}")


def _end() -> None:
    """Their input closes, which ends them."""
    for process in _started:
        if process.stdin is not None:
            process.stdin.close()
    for process in _started:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
