"""What other packages print while they train, kept off the screen; what learnscope says is shown."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from learnscope.probing import ProbeWarning

_PACKAGES = ("transformers", "trl", "peft", "accelerate", "datasets", "huggingface_hub", "torch")


@contextmanager
def quiet(say: Callable[[str], None]) -> Iterator[None]:
    """Within it, progress bars and warnings of other packages are off, and ours go through `say`."""
    # TRL reports every trainer that is made to the hub; a training that is said to be offline is
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import datasets  # type: ignore[import-untyped]
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging  # its functions have no types

    levels = {name: logging.getLogger(name).level for name in _PACKAGES}
    had_bars = bars.is_progress_bar_enabled(), not datasets.are_progress_bars_disabled()
    for name in _PACKAGES:
        logging.getLogger(name).setLevel(logging.ERROR)
    bars.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            _only_ours(say)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if had_bars[0]:
            bars.enable_progress_bar()
        if had_bars[1]:
            datasets.enable_progress_bars()


def _only_ours(say: Callable[[str], None]) -> None:
    packages = "|".join(_PACKAGES)
    # also those that a package attributes to its caller, which is learnscope.training
    warnings.filterwarnings("ignore", module=rf"({packages}|learnscope\.training)(\.|$)")
    warnings.filterwarnings("ignore", category=FutureWarning)
    # in front of the others: a probe's warning is attributed to the optimizer that called it
    warnings.filterwarnings("always", category=ProbeWarning)
    shown = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if issubclass(category, ProbeWarning):
            say(f"tracking: {message}")
        else:
            shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show
