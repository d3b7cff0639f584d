"""What a training loop calls, counted over a session."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

SCHEDULE = "schedule "


@dataclass(slots=True)
class CallCounts:
    """Counts since the session opened; a session that follows no loop leaves them at 0."""

    steps: int = 0
    backwards: int = 0
    uncleared_steps: int = 0
    cleared_steps: int = 0
    steps_without_backward: int = 0
    backwards_without_step: int = 0
    eval_mode_steps: int = 0
    train_mode_evaluations: int = 0
    lost_steps: int = 0
    weights_written: int = 0
    empty_clips: int = 0
    schedule: Counter[int] = field(default_factory=Counter)
    """How often a torch schedule was stepped between two training steps: by that number, how many steps had it."""
    has_schedule: bool = False
    """Whether a torch schedule of one of the optimizers was seen."""
    eval_modules: list[str] = field(default_factory=list)
    """Modules that a training step found in eval mode."""
    evaluated: bool = False
    """Whether forwards of the model can be seen, which those of a compiled one cannot."""

    def totals(self) -> dict[str, int]:
        """All counts by name, as plain numbers that can be saved."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self)}
        counts = {name: value for name, value in numbers.items() if type(value) is int}
        return counts | {f"{SCHEDULE}{calls}": steps for calls, steps in self.schedule.items()}


def schedule_calls(counts: dict[str, int]) -> dict[int, int]:
    """Of counts as `totals` gives them: how many steps there were by the number of calls of a schedule before each.

    >>> schedule_calls({"steps": 3, "schedule 2": 3})
    {2: 3}
    """
    found = {name.removeprefix(SCHEDULE): steps for name, steps in counts.items() if name.startswith(SCHEDULE)}
    return {int(calls): steps for calls, steps in found.items() if steps}
