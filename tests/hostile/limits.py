"""A limit of time for what must not hang."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Hang(BaseException):
    """No `Exception`, which the code under test may catch."""


@contextmanager
def limited(seconds: float, file: TextIO) -> Iterator[None]:
    """Raise `Hang` after so many seconds. Compiled code that never comes back to Python cannot be interrupted: after
    twice as many the process ends, and the traceback is in `file`."""

    def stop(*_: object) -> None:
        raise Hang(f"took more than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    faulthandler.dump_traceback_later(2 * seconds, exit=True, file=file)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
