"""The options of `ls.watch` that a trainer's line takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from learnscope.options import unknown_option
from learnscope.session.watch import watch

OF_THE_TRAINER = ("model", "optimizer", "run", "probes", "resume", "step")
"""Options that a trainer's line sets itself, or has under its own name."""


def checked_options(owner: str, options: dict[str, Any], *, without: Sequence[str] = ()) -> dict[str, Any]:
    """The options, or an error that names the one which `watch` does not have, or which is not for this trainer."""
    known = [name for name in inspect.signature(watch).parameters if name not in (*OF_THE_TRAINER, *without)]
    for option in options:
        if option not in known:
            raise unknown_option(owner, option, ["run", "probes", *known])
    return options
