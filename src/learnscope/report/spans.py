"""The steps at which something in a run was NaN or infinite: the same in every figure and on the page."""

from __future__ import annotations

import math

import numpy as np

from learnscope.findings.gradients.not_finite_where import Source, sources
from learnscope.store.reader import RunReader

Span = tuple[float, float]


def not_finite(reader: RunReader) -> tuple[list[Span], list[str]]:
    """Spans of steps, and what was not finite in them. A span that lasts to the end of the run ends at infinity."""
    bad = [source for source in sources(reader) if len(source.bad)]
    merged: list[Span] = []
    for start, end in sorted(span for source in bad for span in spans_of(source)):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged, ["weights" if source.what == "parameters" else source.what for source in bad]


def spans_of(source: Source) -> list[tuple[float, float]]:
    """From each bad measurement that follows a clean one to the last bad one before the next clean one."""
    broken = np.isin(source.measured, source.bad)
    starts = np.flatnonzero(broken & ~np.concatenate([[False], broken[:-1]]))
    ends = np.flatnonzero(broken & ~np.concatenate([broken[1:], [False]]))
    last = len(source.measured) - 1
    return [
        (float(source.measured[i]) - 0.5, math.inf if j == last else float(source.measured[j]) + 0.5)
        for i, j in zip(starts, ends, strict=True)
    ]
