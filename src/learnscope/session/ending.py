"""How sessions end: closed, by a signal, by an error that nobody catches, or with their process."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from learnscope.model.guard import preserve_rng
from learnscope.session.engine import Engine
from learnscope.store.backend import FolderBackend

WITHOUT_CLOSE = "ended without close()"
_HURRIED = ("terminated by ", "interrupted by KeyboardInterrupt")
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HANDLE_SIGNALS_THEMSELVES = ("lightning", "pytorch_lightning")
"""Trainers that install a handler only where nobody else has one: they would leave theirs out because of ours."""
_open: weakref.WeakKeyDictionary[Engine, BaseException | None] = weakref.WeakKeyDictionary()
"""The open sessions, with the error that was the process's last when each of them opened."""
_forgotten: weakref.WeakKeyDictionary[Engine, weakref.finalize[[FolderBackend], Engine]] = weakref.WeakKeyDictionary()


def opened(engine: Engine) -> None:
    """From now on the session is closed when a signal or an error ends the process, or when nobody holds it."""
    _open[engine] = _last_error()
    if engine.passing.queued:  # before what a tracker does at the end of the process, which would close it first
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
    if isinstance(engine.backend, FolderBackend):
        _forgotten[engine] = weakref.finalize(engine, _forget, engine.backend)
        _forgotten[engine].atexit = False  # then `_at_exit` closes it, with more to say
        _listen()


def finish(engine: Engine, status: str, **facts: Any) -> None:
    """Close the run, with how it ended, what is in it and what the probes cost."""
    if engine.inherited:
        return
    if any(getattr(bound.probe, "show", None) is not None for bound in engine.bound):
        with preserve_rng():  # the first import of what few sessions need may draw, too
            from learnscope.session.telling.looks import keep_looks

            keep_looks(engine, status)
    if status == "finished" and engine.has_losses:
        status = "degraded"
    facts = {"ended": time.time(), "last_step": engine.last_step, **facts, "cost": engine.budget.summary()}
    try:
        engine.store_file("run.json", lambda: engine.note(status, **facts))
        if engine.passing.queued:  # the run is complete before anybody waits for a tracker
            engine.passing.hurried = is_hurried(status)
            with preserve_rng():
                engine.passing.wait()
            engine.store_file("run.json", lambda: engine.note(status, **facts))
    finally:
        _closed(engine)
        engine.backend.close()


@contextmanager
def concluding(engine: Engine, **facts: Any) -> Iterator[None]:
    """Closes the session when the block ends; the manifest names an error that ended it."""
    try:
        yield
    except BaseException as error:
        engine.close()
        finish(engine, interrupted_by(error))
        raise
    engine.close()
    finish(engine, "finished", **facts)


def is_hurried(status: str) -> bool:
    """Whether a session ends in this way because its process is to end now."""
    return status.startswith(_HURRIED)


def interrupted_by(error: BaseException) -> str:
    return f"interrupted by {type(error).__name__}: {error}"


def _closed(engine: Engine) -> None:
    _open.pop(engine, None)
    finalizer = _forgotten.pop(engine, None)
    if finalizer is not None:
        finalizer.detach()
    if not _in_folders():
        _stop_listening()


def _in_folders() -> list[Engine]:
    return [engine for engine in list(_open) if isinstance(engine.backend, FolderBackend)]


def _end(engine: Engine, status: str) -> None:
    """Close a session while the process ends; nothing that goes wrong in it may change how the process ends."""
    try:
        with preserve_rng():
            if engine.closer is not None:
                engine.closer(status)
            else:
                engine.close()
                finish(engine, status)
    except Exception:  # noqa: BLE001  (as said above)
        traceback.print_exc()


def _forget(backend: FolderBackend) -> None:
    """A session that nobody closed, and that nobody can close any more."""
    manifest = backend.last_manifest()
    backend.put_manifest({**manifest, "status": WITHOUT_CLOSE})
    backend.close()


# signals


def _listen() -> None:
    """Only where the default action would follow: a handler of the program's own decides by itself."""
    if threading.current_thread() is not threading.main_thread():
        return
    if not any(name in sys.modules for name in _HANDLE_SIGNALS_THEMSELVES):
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _on_signal)


def _stop_listening() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, signal.SIG_DFL)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    """Close the runs, then end as the process would have without us."""
    for engine in _in_folders():
        if engine.writing:  # a moment later, or the lines would be there twice or not at all
            engine.after_writing = lambda: _on_signal(number, None)
            return
    for engine in _in_folders():
        _end(engine, f"terminated by {signal.Signals(number).name}")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# the end of the process, and children


def _last_error() -> BaseException | None:
    """The error that ended the program, if one has: Python keeps it before it calls what stands here."""
    error: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error or sys.exc_info()[1]


def _at_exit() -> None:
    error = _last_error()
    of_sinks = [engine for engine in list(_open) if engine.passing.queued]
    for engine in dict.fromkeys([*_in_folders(), *of_sinks]):
        if not engine.closed_by_its_owner:
            new_error = error if error is not _open[engine] else None
            _end(engine, WITHOUT_CLOSE if new_error is None else interrupted_by(new_error))


def _in_child() -> None:
    """A forked child has copies of the sessions: they do nothing any more, and the parent's go on."""
    for engine in list(_open):
        engine.inherited = True
        finalizer = _forgotten.pop(engine, None)
        if finalizer is not None:
            finalizer.detach()
    _open.clear()
    _stop_listening()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
