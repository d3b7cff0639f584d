"""What of the data each part of an audit uses, how long it will take, and what that leaves out, in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from learnscope.model.cost.calls import can_decode, max_positions, token_length
from learnscope.model.cost.speed import settings
from learnscope.model.data import fixed_batches
from learnscope.model.robustness.prompts import possible_kinds
from learnscope.posttrain.checks import check_runs
from learnscope.posttrain.data import Batches
from learnscope.posttrain.encoders import EncoderTask
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.planning.depth import (
    EXAMPLES,
    STEPS,
    WANTED,
    Depth,
    Share,
    affordable_bits,
    can_shorten,
    choose_depth,
    examples_of_text,
    shortened,
    timed_part,
)
from learnscope.posttrain.planning.effort import OneExample, Passes, one_example
from learnscope.posttrain.planning.estimate import Estimate, estimated, seconds_of, speeds, timed_passes, timed_settings
from learnscope.posttrain.planning.levels import LEVELS, Level
from learnscope.posttrain.planning.sampling import NARROW, Sample, enough_examples
from learnscope.posttrain.reader import check_tokens
from learnscope.posttrain.session import AuditSession
from learnscope.task import Task

TIMED = 4
"""Examples of the first batch that are timed for the estimate, at most."""


class Planner:
    """The plan of an audit; `reduced` has what the parts that were planned leave out."""

    def __init__(self, session: AuditSession, *, thorough: bool = False, quick: bool = False) -> None:
        if thorough and quick:
            raise PosttrainError("thorough= and quick= exclude each other: give one of them")
        self.session, self.thorough, self.quick = session, thorough, quick
        self.reduced: dict[str, str] = {}
        self.asked = False
        """Whether the number of examples was asked for, so that bit widths use as many where the work allows it."""
        self._counted: tuple[Batches, tuple[OneExample, int]] | None = None
        self._sampled: tuple[Batches, Sample | None] | None = None

    @property
    def effort(self) -> str:
        return "quick" if self.quick else "thorough" if self.thorough else "default"

    @property
    def level(self) -> Level:
        """What this effort spends besides the examples."""
        return LEVELS[self.effort]

    def fixed(self, data: Any) -> Batches:
        """The batches of the data, read once, with the facts about them."""
        if isinstance(data, Batches):
            return data
        return Batches(fixed_batches(data, self.session.task), dict(getattr(data, "about", {})))

    def checked(self, data: Any) -> Batches:
        """The batches of the caller's own data, refused if the model cannot run them."""
        fixed = self.fixed(data)
        check_tokens(self.session.model, fixed)
        if not isinstance(self.session.task, EncoderTask):  # which makes its own labels first
            check_runs(self.session.model, self.session.task_of(fixed), fixed)
        return fixed

    def sample(self, data: Batches) -> Sample | None:
        """How many of the examples are enough for the bit widths; None where that cannot be asked."""
        if self._sampled is None or self._sampled[0] is not data:
            one, given = self._effort(data)
            share = Share(given)
            if not self.thorough:  # as many as the part can afford at all, so that no pass is run for nothing
                share = affordable_bits(self.session.model, one, given, given, self.level)
            found = None
            if min(share.examples, given) > WANTED and not share.searched:  # else the work has decided
                task = self.session.task_of(data)
                part = shortened(task, data, share, {})  # as long as they are examined
                found = enough_examples(self.session.model, task, part, share.examples, NARROW[self.effort])
            self._sampled = data, found
        return self._sampled[1]

    def depth(self, data: Batches, *, thorough: bool | None = None) -> Depth:
        one, given = self._effort(data)
        sample = None if self.asked else self.sample(data)
        thorough = self.thorough if thorough is None else thorough
        quick = self.quick and not thorough
        for_bits = WANTED if sample is None else sample.examples
        model = self.session.model
        return choose_depth(
            model, one, given, thorough=thorough, quick=quick, for_bits=for_bits, asked=self.asked,
            kinds=possible_kinds(model, data, self.session.tokenizer),
        )  # fmt: skip

    def estimates(
        self, data: Batches, parts: Sequence[str], clock: Callable[[], float] = time.perf_counter
    ) -> tuple[Estimate, Estimate]:
        """As planned, and of a thorough audit, in seconds of this clock."""
        one, given = self._effort(data)
        model, task = self.session.model, self.session.task_of(data)
        size = task.size(data[0])
        few = min(size, TIMED)
        speed = speeds(timed_passes(model, task, task.take(data[0], few), clock), self._per_example(data, one), few)
        performance = timed_settings(self._settings(task, data[0]), self.level.seconds, one, speed)
        performance += seconds_of(Passes(plain=3), one, size + 1, speed)  # memory, for one example and the batch
        layers = 1 if self.level.one_example else size
        performance += max(8 * self.level.seconds, seconds_of(Passes(plain=7), one, layers, speed))

        def of(depth: Depth) -> Estimate:
            timed = 1 if depth.bits.tokens else size
            return estimated(model, one, given, depth, parts, speed, timed, performance)

        return of(self.depth(data)), of(self.depth(data, thorough=True))

    def _per_example(self, data: Batches, one: OneExample) -> OneExample:
        """Of the batch that is timed, which may be shorter than the longest."""
        length = token_length(data[0])
        return one.shortened(length) if length else one

    def _settings(self, task: Task, batch: Any) -> list[tuple[float, bool]]:
        """What is timed, in examples of the data's length, and which of it is the data's own batch."""
        model, size, tokens = self.session.model, task.size(batch), token_length(batch)
        decoded = tokens if can_decode(model, task) else None
        chosen = settings(
            size, tokens, None, None, decoded=decoded, positions=max_positions(model),
            parameters=sum(parameter.numel() for parameter in model.parameters()), work=self.level.grid_work,
        )  # fmt: skip
        return [
            (s.batch * (1 if s.phase == "decode" else s.length) / tokens if tokens else float(s.batch), s.main)
            for s in chosen
        ]

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
        return examples_of_text(one, sampled=sampled, quick=self.quick)

    def left_out(self, data: Batches, parts: Sequence[str]) -> dict[str, str]:
        """What each part uses of these data, in words, where a thorough audit uses more."""
        depth = self.depth(data)
        said = {
            "bit_widths": self._words("bit_widths", data, depth.bits, asked=self.asked),
            "robustness": self._words("robustness", data, depth.attacks, depth.steps),
        }
        return {part: said[part] for part in parts if said.get(part)}

    def part(self, name: str, data: Batches, share: Share, options: dict[str, Any]) -> Batches:
        """The data that a part is examined on with these options, with a note of what was left out."""
        examples, steps = options["examples"], options.get("steps", STEPS)
        share = replace(share, examples=examples) if isinstance(examples, int) else share
        asked = self.asked and name == "bit_widths"
        reduced = self._words(name, data, share, steps if isinstance(steps, int) else STEPS, asked=asked)
        self.reduced = {part: text for part, text in (self.reduced | {name: reduced}).items() if text}
        about = data.about | ({"reduced": reduced} if reduced else {})
        return shortened(self.session.task_of(data), data, share, about)

    def timed(self, data: Batches, part: Batches, share: Share) -> Batches:
        """The data that exported copies are timed on."""
        return timed_part(self.session.task_of(part), part, data.about) if share.tokens else data

    def _words(self, part: str, data: Batches, share: Share, steps: int = STEPS, *, asked: bool = False) -> str:
        task = self.session.task_of(data)
        given, length = sum(map(task.size, data)), max(map(token_length, data))
        of_data = share.words(given, length, steps=steps, wanted=given if asked else WANTED)
        return ", ".join(filter(None, [of_data, self.level.left_out.get(part, "")]))

    def _effort(self, data: Batches) -> tuple[OneExample, int]:
        """What one example takes, and how many there are; without tokens where examples cannot be cut."""
        if self._counted is None or self._counted[0] is not data:
            check_tokens(self.session.model, data)
            task = self.session.task_of(data)
            one = one_example(self.session.model, task, max(data, key=token_length))
            one = one if can_shorten(task, data) else replace(one, tokens=0)
            self._counted = data, (one, sum(map(task.size, data)))
        return self._counted[1]
