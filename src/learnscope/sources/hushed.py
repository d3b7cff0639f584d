"""Silencing what other packages log while they load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

HUGGING_FACE = ("transformers", "datasets", "huggingface_hub", "torch", "torchao")
"""Loading a model imports the last two, which warn about missing optional packages."""


@contextmanager
def hushed(packages: Iterable[str] = HUGGING_FACE) -> Iterator[None]:
    """Inside the block, these packages log only errors."""
    loggers = [logging.getLogger(name) for name in packages]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def no_bars() -> Iterator[None]:
    """Inside the block, transformers and datasets, if installed, draw no progress bars."""
    switches: list[tuple[bool, Callable[[], None], Callable[[], None]]] = []
    if find_spec("transformers"):
        from transformers.utils import logging as transformers_logging

        bars: Any = transformers_logging  # its functions have no types
        switches.append((bars.is_progress_bar_enabled(), bars.disable_progress_bar, bars.enable_progress_bar))
    if find_spec("datasets"):
        import datasets  # type: ignore[import-untyped]

        on = not datasets.are_progress_bars_disabled()
        switches.append((on, datasets.disable_progress_bars, datasets.enable_progress_bars))
    for _, off, _ in switches:
        off()
    try:
        yield
    finally:
        for was_on, _, on_again in switches:
            if was_on:
                on_again()
