"""Where records go besides the run folder: trackers, a terminal, files. `sinks_for` finds those of a trainer."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`learnscope.sinks.sinks_for`, imported when it is asked for: a session needs none of the trackers' modules."""
    if name != "sinks_for":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from learnscope.sinks.chosen import sinks_for

    return sinks_for
