"""What happens in the course of a loss: spikes, a rise that stays, a jump at the very start, a fall without end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.reading.course.loss_course import BLOCK, MAD, SURE, Course, Level, trailing
from learnscope.reading.gather import Floats

WINDOW = 20
"""Values before one that say where the loss stood."""
STANDS_OUT = 10.0
"""Standard deviations of the noise around it from which a value may be a spike."""
APART = 4.0
"""A spike is this many times as far off as the farthest value that is none: losses with heavy tails have no spikes."""
MOST_SPIKES = 0.02
"""Share of the values that may be spikes, and three in any case; what happens more often is noise."""
BACK = 0.1
"""Share of its height below which a spike has recovered."""
SURE_RISE = 8.0
"""Standard errors by which the end lies above the best level, for a rise that stays."""
ALL_LOST = 0.9
"""Share of what was gained from which a loss is back where it began."""
SLACK, CLIP, ALARM = 1.5, 5.0, 30.0
"""Of the CUSUM, in standard deviations: what is taken off each value, how much a value counts at most, the alarm."""


@dataclass(frozen=True)
class Spike:
    """A loss far above what came before and after."""

    step: int
    value: float
    level: float
    """Where the loss stood before."""
    noise: float
    """Standard deviation of the loss around it."""
    back: int | None
    """The first step at which the loss was back; None if the run ended first."""
    values: int
    """How many values were off."""

    @property
    def heights(self) -> float:
        """In standard deviations of the noise."""
        return (self.value - self.level) / self.noise if self.noise else math.inf


@dataclass(frozen=True)
class Rise:
    """A loss that ended well above its best level and was not on its way back."""

    since: int
    """The step at which a CUSUM of the standardised losses saw it; the start of the rise is before."""
    best: Level
    end: Level
    lost: float
    """In units of what had been gained until the best level; infinity if nothing had."""
    from_start: bool
    """Whether it never fell."""


@dataclass(frozen=True)
class Jump:
    """A loss that jumped far above its first value within the first steps."""

    first: float
    step: int
    value: float
    back: int | None
    """The first step at which it was back at its first value."""


def spikes(course: Course) -> list[Spike]:
    """Values that stand out from noise and from all other values, with a return to where the loss stood.

    Off are values more than 10 standard deviations above the median of the 20 before them. They are spikes if they are
    4 times as far off as all others, in units of the local noise and of the loss, so that a loss which is noisy at
    times, as that of a batch of one example, has none.
    """
    before = trailing(course.values, WINDOW, lambda rolling: rolling.median())
    noise = _local_noise(course)
    excess = np.nan_to_num(course.values - before, nan=-math.inf)
    found, off = _episodes(course, before, noise, excess)
    if not found:
        return []
    rest = np.where(off, -math.inf, excess)
    usual = max(float((rest / noise).max()), 1.0)
    heights = sorted((spike.heights for spike in found), reverse=True)
    most = max(3, int(MOST_SPIKES * len(course)))
    gaps = [*zip(heights, [*heights[1:], usual], strict=True)][:most]
    cut = next((height for height, lower in reversed(gaps) if height >= APART * lower), None)
    if cut is None:
        return []
    kept = [spike for spike in found if spike.heights >= cut]
    others = [spike for spike in found if spike.heights < cut]
    return [spike for spike in kept if _short(spike, course) and _apart(spike, course, rest, others)]


def _short(spike: Spike, course: Course) -> bool:
    """A slow return is one only from far above the start: data that grow harder by stages look the same otherwise."""
    return spike.values <= 2 * WINDOW or spike.value - spike.level > 3 * course.gain


def _local_noise(course: Course) -> Floats:
    """Of each value, from the differences of the values before it; at least half of the usual noise."""
    moves = np.abs(np.diff(course.values, prepend=course.values[0]))
    local = trailing(moves, 2 * WINDOW, lambda rolling: rolling.median()) * MAD / math.sqrt(2)
    least = max(course.noise / 2, 1e-12 * float(np.abs(course.values).max()), 1e-300)
    noise: Floats = np.fmax(np.nan_to_num(local, nan=course.noise), least)
    return noise


def _episodes(course: Course, before: Floats, noise: Floats, excess: Floats) -> tuple[list[Spike], NDArray[np.bool_]]:
    """Values that stand out, each with those after it until the loss is back; and which values these are."""
    found: list[Spike] = []
    off, end, last = np.zeros(len(course), bool), 0, -BLOCK
    smooth = pd.Series(course.values[::-1]).rolling(3, min_periods=1).median().to_numpy(np.float64)[::-1]
    for place in np.flatnonzero(excess > STANDS_OUT * noise).tolist():
        if place < end:
            continue
        level, spread = float(before[place]), float(noise[place])
        after = slice(place + 1, place + 1 + max(10 * WINDOW, len(course) // 4))
        height = float(course.values[place : place + 3].max()) - level
        back = np.flatnonzero(smooth[after] <= level + max(3 * spread, BACK * height))
        # smooth looks at two values more, so that one low value is not a return
        end = place + 1 + int(back[0]) if len(back) else len(course)
        off[place:end] = True
        if not len(back) and len(course) - place > BLOCK:  # it stays there: a rise, not a spike
            continue
        if found and place - last < BLOCK:  # it has not really come back
            place -= found.pop().values
        last = end
        value = float(course.values[place:end].max())
        step = int(course.steps[place + int(course.values[place:end].argmax())])
        found.append(Spike(step, value, level, spread, int(course.steps[end]) if len(back) else None, end - place))
    return found, off


def _apart(spike: Spike, course: Course, rest: Floats, others: list[Spike]) -> bool:
    """Whether it is far above the other values around it in units of the loss too."""
    width = max(len(course) // 4, 5 * WINDOW)
    place = int(np.searchsorted(course.steps, spike.step))
    around = rest[max(0, place - width) : place + width]
    height = spike.value - spike.level
    farthest = max([float(around.max()), *(other.value - other.level for other in others)])
    return height >= APART * max(farthest, 0.0)


def rise(course: Course) -> Rise | None:
    """A rise that stays: the end lies above the best level, by far more than noise, and does not come back.

    A loss that rises for a while and falls again, as with a cyclic learning rate or a curriculum, has none.
    """
    best, end = course.best, course.end
    gained = course.start.value - best.value
    # a loss that swings widely has large errors; one that is back where it began needs fewer of them
    all_lost = course.start.above(best) > SURE and end.value - best.value > ALL_LOST * gained
    if end.above(best) < (SURE if all_lost else SURE_RISE) or best.last >= end.first:
        return None
    tail = course.levels[-max(3, len(course.levels) // 5) :]
    if tail[0].above(tail[-1]) > 0.75 * SURE:  # on its way back
        return None
    sure_gain = course.start.above(best) > SURE
    risen = end.value - best.value
    least = 1e-3 * max(abs(best.value), abs(end.value))  # of a loss without noise every change is sure
    if risen <= least or (since := _alarm(course, best)) is None:
        return None
    lost = risen / gained if sure_gain and gained > 0 else math.inf
    return Rise(since, best, end, lost, from_start=not sure_gain)


def _alarm(course: Course, best: Level) -> int | None:
    """The first step after the best level at which an upward CUSUM passes its alarm and stays above it to the end."""
    after = course.steps > best.last
    noise = max(course.noise, best.error, 1e-300)
    scores = np.clip((course.values[after] - best.value) / noise, -CLIP, CLIP) - SLACK
    sums = np.cumsum(scores)
    cusum = sums - np.minimum.accumulate(np.minimum(sums, 0.0))
    quiet = np.flatnonzero(cusum <= ALARM)
    first = int(quiet[-1]) + 1 if len(quiet) else 0
    steps = course.steps[after]
    return int(steps[first]) if first < len(steps) else None


def jump(course: Course) -> Jump | None:
    """A jump above the first value by more than twice all that was ever gained, once, within the first 50 values.

    Three values in a row must be high, and after the return none as high as a third of it: else it is noise.
    """
    n = min(max(50, len(course) // 10), len(course) - BLOCK)
    first = float(course.values[0])
    lasting = pd.Series(course.values).rolling(3).min().fillna(-math.inf).to_numpy(np.float64)
    height = float(lasting[:n].max()) - first
    gained = max(first - course.best.value, 0.0)
    if height <= max(2 * gained, STANDS_OUT * course.noise, 0.5 * abs(first)):
        return None
    highest = int(course.values[:n].argmax())
    after = lasting[int(lasting[:n].argmax()) :]
    back = np.flatnonzero(after <= first + height / APART)
    if not len(back) or float(after[back[0] :].max()) > first + height / APART:
        return None
    under = np.flatnonzero(course.values[highest:] <= first)
    step = int(course.steps[highest + under[0]]) if len(under) else None
    return Jump(first, int(course.steps[highest]), float(course.values[highest]), step)


def endless_fall(course: Course) -> bool:
    """Whether the loss falls far below zero, ever faster: as of an objective that has no least value."""
    third = len(course.levels) // 3
    if third < 2 or course.broken > len(course):
        return False
    first, middle, last = course.start.value, course.levels[-third].value, course.end.value
    size = max(abs(first), STANDS_OUT * course.noise)
    return last < -10 * size and middle - last > (first - middle) / 2
