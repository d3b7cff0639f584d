"""Silencing what other packages log, warn of and draw while we use them; learnscope's own messages are shown."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from learnscope.record import ProbeWarning

HUGGING_FACE = ("transformers", "datasets", "huggingface_hub", "torch", "torchao", "bitsandbytes")
"""Loading a model imports the last three, which warn about missing optional packages."""
_PACKAGES = (*HUGGING_FACE, "trl", "peft", "accelerate")
_OURS = r"learnscope\.(training|posttrain|sources)"


@contextmanager
def hushed(packages: Iterable[str] = HUGGING_FACE) -> Iterator[None]:
    """Inside the block, these packages log only errors."""
    with ExitStack() as stack:
        for logger in map(logging.getLogger, packages):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield


@contextmanager
def no_bars() -> Iterator[None]:
    """Inside the block, transformers and datasets, if installed, draw no progress bars."""
    with ExitStack() as stack:
        if find_spec("transformers"):
            from transformers.utils import logging as transformers_logging

            bars: Any = transformers_logging  # its functions have no types
            if bars.is_progress_bar_enabled():
                stack.callback(bars.enable_progress_bar)
                bars.disable_progress_bar()
        if find_spec("datasets"):
            import datasets  # type: ignore[import-untyped]

            if not datasets.are_progress_bars_disabled():
                stack.callback(datasets.enable_progress_bars)
                datasets.disable_progress_bars()
        yield


@contextmanager
def quiet(say: Callable[[str], None], *, about: str = "tracking") -> Iterator[None]:
    """Inside the block, progress bars and warnings of other packages are off, and ours go to `say`."""
    # TRL reports every new trainer to the hub; a training that claims to be offline must not
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ProbeWarning):
            say(f"{about}: {message}")
        else:
            default(message, category, *where, **more)

    with hushed(_PACKAGES), no_bars(), warnings.catch_warnings():
        # also warnings that a package attributes to its caller, which is learnscope
        warnings.filterwarnings("ignore", module=rf"({'|'.join(_PACKAGES)}|{_OURS})(\.|$)")
        warnings.filterwarnings("ignore", category=FutureWarning)
        # before the other filters: a probe's warning is attributed to the optimizer that called it
        warnings.filterwarnings("always", category=ProbeWarning)
        warnings.showwarning = show
        yield
