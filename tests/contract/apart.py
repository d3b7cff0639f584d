"""Several works of one program, each in a process that has imported what the program had, and nothing of the others."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any


def each_apart(works: Iterable[Callable[[], Any]]) -> list[Any]:
    """What each returns, by way of JSON. Starting Python and importing torch for each would take longer than most."""
    return [_apart(work) for work in works]


def _apart(work: Callable[[], Any]) -> Any:
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            answer = json.dumps(work())
            with os.fdopen(writing, "w") as pipe:
                pipe.write(answer)
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child must end here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("a forked process failed: its traceback is above")
    return json.loads(answer)
