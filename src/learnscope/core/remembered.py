"""Whether a result is stored, for probes that compute several of those that are not together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learnscope.core.moment import Moment


def is_remembered(moment: Moment, part: Mapping[str, Any]) -> bool:
    """Whether `moment.remember(part, …)` would find this result."""
    memo = moment.subject.memo
    return memo is not None and memo.knows({**moment.once("content", moment.subject.content), "part": part})
