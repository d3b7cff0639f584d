"""Every sink of the package, found by its file; one that is added takes part by itself."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import learnscope as ls
from learnscope import sinks

ELSEWHERE = ("MLflowSink", "TrackioSink")
"""Their packages want an environment of their own: tests/sinks/test_trackers.py holds them to the same."""
_MADE: Mapping[str, Callable[[], Any]] = {
    "ConsoleSink": lambda: ls.ConsoleSink(seconds=0.0),
    "PrometheusSink": lambda: ls.PrometheusSink("latest.prom", seconds=0.0),
    "TensorBoardSink": lambda: ls.TensorBoardSink("board"),
    "WandbSink": lambda: ls.WandbSink(mode="offline", dir="."),
}
"""With what they cannot do without; a sink that is not named here is made without arguments."""


def packaged() -> list[str]:
    """The names of all sinks that write somewhere."""
    modules = [import_module(f"{sinks.__name__}.{module.name}") for module in pkgutil.iter_modules(sinks.__path__)]
    return sorted(
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and name.endswith("Sink") and name != "Sink" and value.__module__ == module.__name__
    )


def build(name: str) -> Any:
    """The sink; whatever it imports, it imports now or later."""
    return _MADE.get(name, getattr(ls, name))()
