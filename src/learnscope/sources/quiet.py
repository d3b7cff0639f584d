"""Silencing what other packages print while we use them; learnscope's own messages are shown."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from learnscope.record import ProbeWarning
from learnscope.sources.hushed import hushed, no_bars

_PACKAGES = ("transformers", "trl", "peft", "accelerate", "datasets", "huggingface_hub", "torch", "torchao")
_OURS = r"learnscope\.(training|posttrain|sources)"


@contextmanager
def quiet(say: Callable[[str], None], *, about: str = "tracking") -> Iterator[None]:
    """Inside the block, progress bars and warnings of other packages are off, and ours go to `say`."""
    # TRL reports every new trainer to the hub; a training that claims to be offline must not
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with ExitStack() as stack:
        stack.enter_context(hushed(_PACKAGES))
        stack.enter_context(no_bars())
        stack.enter_context(warnings.catch_warnings())
        _only_ours(say, about)
        yield


def _only_ours(say: Callable[[str], None], about: str) -> None:
    packages = "|".join(_PACKAGES)
    # also warnings that a package attributes to its caller, which is learnscope
    warnings.filterwarnings("ignore", module=rf"({packages}|{_OURS})(\.|$)")
    warnings.filterwarnings("ignore", category=FutureWarning)
    # before the other filters: a probe's warning is attributed to the optimizer that called it
    warnings.filterwarnings("always", category=ProbeWarning)
    shown = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if issubclass(category, ProbeWarning):
            say(f"{about}: {message}")
        else:
            shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show
