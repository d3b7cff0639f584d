"""What of the data each part of an audit uses, how long it will take, and what that leaves out, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from learnscope.model.cost.calls import token_length
from learnscope.model.data import fixed_batches
from learnscope.posttrain.data import Batches
from learnscope.posttrain.depth import (
    EXAMPLES,
    STEPS,
    WANTED,
    Depth,
    Share,
    can_shorten,
    choose_depth,
    examples_of_text,
    shortened,
    timed_part,
)
from learnscope.posttrain.effort import OneExample, Passes, one_example
from learnscope.posttrain.estimate import Estimate, estimated, timed_forward
from learnscope.posttrain.reader import check_tokens
from learnscope.posttrain.session import AuditSession


class Planner:
    """The plan of an audit; `reduced` has what the parts that were planned leave out."""

    def __init__(self, session: AuditSession, *, thorough: bool = False) -> None:
        self.session, self.thorough = session, thorough
        self.reduced: dict[str, str] = {}
        self.asked = False
        """Whether the number of examples was asked for, so that bit widths use as many where the work allows it."""
        self._counted: tuple[Batches, tuple[OneExample, int]] | None = None

    def fixed(self, data: Any) -> Batches:
        """The batches of the data, read once, with the facts about them."""
        if isinstance(data, Batches):
            return data
        return Batches(fixed_batches(data, self.session.task), dict(getattr(data, "about", {})))

    def depth(self, data: Batches, *, thorough: bool | None = None) -> Depth:
        one, given = self._effort(data)
        thorough = self.thorough if thorough is None else thorough
        return choose_depth(self.session.model, one, given, thorough=thorough, asked=self.asked)

    def estimates(self, data: Batches, parts: Sequence[str]) -> tuple[Estimate, Estimate]:
        """As planned, and of a thorough audit."""
        one, given = self._effort(data)
        model, task = self.session.model, self.session.task_of(data)
        work = task.size(data[0]) * Passes(plain=1).work(one)
        speed = work / max(timed_forward(model, task, data[0]), 1e-6)

        def of(depth: Depth) -> Estimate:
            timed = 1 if depth.bits.tokens else task.size(data[0])
            return estimated(model, one, given, depth, parts, speed, timed)

        return of(self.depth(data)), of(self.depth(data, thorough=True))

    def affordable(self, length: int, *, sampled: bool = False) -> int:
        """How many examples of so many tokens are read, or sampled, by default."""
        if self.thorough:
            return EXAMPLES
        ids = torch.zeros(1, length, dtype=torch.int64)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        try:
            one = one_example(self.session.model, self.session.task_of([batch]), batch)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):  # it takes other inputs than these
            return EXAMPLES
        return examples_of_text(one, sampled=sampled)

    def left_out(self, data: Batches, parts: Sequence[str]) -> dict[str, str]:
        """What each part uses of these data, in words, where a thorough audit uses more."""
        depth = self.depth(data)
        said = {
            "bit_widths": self._words(data, depth.bits, asked=self.asked),
            "robustness": self._words(data, depth.attacks, depth.steps),
        }
        return {part: said[part] for part in parts if said.get(part)}

    def part(self, name: str, data: Batches, share: Share, options: dict[str, Any]) -> Batches:
        """The data that a part is examined on with these options, with a note of what was left out."""
        examples, steps = options["examples"], options.get("steps", STEPS)
        share = replace(share, examples=examples) if isinstance(examples, int) else share
        asked = self.asked and name == "bit_widths"
        reduced = self._words(data, share, steps if isinstance(steps, int) else STEPS, asked=asked)
        self.reduced = {part: text for part, text in (self.reduced | {name: reduced}).items() if text}
        about = data.about | ({"reduced": reduced} if reduced else {})
        return shortened(self.session.task_of(data), data, share, about)

    def timed(self, data: Batches, part: Batches, share: Share) -> Batches:
        """The data that exported copies are timed on."""
        return timed_part(self.session.task_of(part), part, data.about) if share.tokens else data

    def _words(self, data: Batches, share: Share, steps: int = STEPS, *, asked: bool = False) -> str:
        task = self.session.task_of(data)
        given, length = sum(map(task.size, data)), max(map(token_length, data))
        return share.words(given, length, steps=steps, wanted=given if asked else WANTED)

    def _effort(self, data: Batches) -> tuple[OneExample, int]:
        """What one example takes, and how many there are; without tokens where examples cannot be cut."""
        if self._counted is None or self._counted[0] is not data:
            check_tokens(self.session.model, data)
            task = self.session.task_of(data)
            one = one_example(self.session.model, task, max(data, key=token_length))
            one = one if can_shorten(task, data) else replace(one, tokens=0)
            self._counted = data, (one, sum(map(task.size, data)))
        return self._counted[1]
