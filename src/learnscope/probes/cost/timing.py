"""What the probes of speed share: their options, and the batch that they time."""

from __future__ import annotations

import math
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.options import check_whole


class TimingProbe(Probe):
    """Times passes over the data's first batch."""

    at: At = "once"
    seconds: float = 1.0
    repeats: int = 100
    """Passes after which it stops before its seconds are over."""

    needs = frozenset({"holdout"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, repeats=1)
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds < math.inf):
            raise ValueError(f"{type(self).__name__}(seconds={self.seconds!r}): a number above 0 is needed")


def first_batch(moment: Moment) -> Any:
    return next(iter(moment.subject.holdout or ()))
