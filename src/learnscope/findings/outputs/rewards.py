"""A reward that falls while a policy is trained: what is learned is to get less of it."""

from __future__ import annotations

from itertools import pairwise

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import said
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.loss_course import FEWEST, SURE, Course, loss_course
from learnscope.reading.course.trainers import trainer_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import between, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

KEYS = (
    "reward", "rewards", "mean_reward", "reward_mean", "avg_reward", "average_reward", "episode_reward",
    "return", "returns", "mean_return", "return_mean", "episode_return", "episodic_return", "ep_rew_mean",
)  # fmt: skip
"""What loops call a reward."""
SPREADS = 3.0
"""Standard deviations of a single reward by which it has to fall: a policy that only wanders loses less."""


@analysis(place=11, check="course of the reward", needs=[Loss.logged], at_least=FEWEST)
def falling_reward(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (its own noise is the measure)
    """It ends far below where it began, and never came back on the way."""
    if (trainer_of(reader) or {}).get("kind") == "RewardTrainer":  # what it logs is what the model itself says
        return []
    for key in KEYS:
        course = loss_course(reader, Loss.logged.at(key=key))
        if course is not None and _falls(course):
            return [_finding(reader, key, course)]
    return []


def _falls(course: Course) -> bool:
    """A reward that rose first is of a policy that broke, which is another matter."""
    levels, start, end = course.levels, course.start, course.end
    fifths = [start, *(levels[place * len(levels) // 5] for place in range(1, 5)), end]
    rose = any(level.above(start) > SURE for level in levels)
    comes_back = any(later.above(earlier) > SURE for earlier, later in pairwise(fifths))
    return start.above(end) > SURE and start.value - end.value > SPREADS * course.noise and not comes_back and not rose


def _finding(reader: RunReader, key: str, course: Course) -> Finding:
    start, end = course.start, course.end
    losses = loss_course(reader)
    fell = (
        f"The loss went from {num(losses.start.value)} to {num(losses.end.value)} meanwhile."
        if losses is not None
        else None
    )
    return Finding(
        kind="loss_maximised",
        severity="warning",
        title=f"The reward goes down: what is trained for is less of it, from {num(start.value)} to {num(end.value)}",
        detail=f"`{key}` was {num(start.value)} in {between(start.first, start.last)} and {num(end.value)} in "
        f"{between(end.first, end.last)} (medians, {count(len(course), 'value')}), and never surely above where it "
        "began. A policy that learns nothing stays where it is: to fall and stay down takes knowledge. "
        f"{' '.join(said(fell))}".strip(),
        advice="Look for the sign of the reward or of the advantage in the loss: a policy gradient minimises "
        "−log π(a) · advantage. Then for a reward that is a cost, and for actions that are mapped the wrong way.",
        evidence=evidence_over((start.first, end.last), course.probe, key, len(course), end.value - start.value),
        cause=True,
        explains=["diverging", "worsening", "plateau", "not_learning", "learning_rate_too_high", "exploding"],
        alternatives=[
            "An environment that gets harder during the run, or a penalty that grows: compare with the reward of "
            "actions drawn at random, in the same stage."
        ],
        since=start.first,
    )
