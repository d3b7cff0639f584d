"""How deep an audit goes: on how many examples, of how many tokens, with how many steps of an attack.

Chosen by what the model takes, never by a clock: the same model and data are examined alike on every machine, and what
was computed before is found again. Tokens are given up before examples, since intervals are over examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from learnscope.model.cost.calls import resized, token_length
from learnscope.model.data import joined
from learnscope.model.robustness.prompts import TOKEN_KINDS
from learnscope.posttrain.data import Batches
from learnscope.posttrain.planning.effort import OneExample, Passes, bit_passes, robustness_passes
from learnscope.posttrain.planning.levels import LEVELS, Level
from learnscope.probes.bits.bit_frontier import BitFrontier
from learnscope.probes.bits.trials import Judged
from learnscope.task import IGNORE, Task

EXAMPLES, LENGTH = 256, 128
"""Of the data, at most."""
SAMPLED_LENGTH = 64
"""Tokens of a sequence that the model makes up itself."""
WANTED = 32
"""Examples to examine robustness on, and bit widths at least: the interval of a share is at most a third wide."""
ENOUGH = {"bit_widths": 32, "robustness": 16}
"""Examples below which tokens are given up first. Bits are judged on half of them."""
LEAST_READ = 32
"""Examples that are read, however large the model is."""
FEWEST = {"bit_widths": 32, "robustness": 8}
"""Those that a part is examined on, however large the model is: 16 to judge bits on have an interval worth the name."""
SHORTEST = 16
MADE_UP = 64
"""Examples that bits are examined on where tokens are given up: more of them make up for what is lost."""
WORK = {"performance": 0.3e12, "bit_widths": 1.75e12, "robustness": 1.0e12}
"""Multiply-adds that each part may take: little more than a minute in all of two cores."""
STEPS, TRANSFER_STEPS = 10, 5
FEWER_STEPS, FEWER_TRANSFER_STEPS = 5, 3


@dataclass(frozen=True, slots=True)
class Share:
    """What of the data a part is examined on; `tokens` is 0 where examples are not cut."""

    examples: int
    tokens: int = 0
    searched: int = 0
    """Of the examples that bits are examined on, those to search on; 0: half of them."""

    def words(self, given: int, length: int, *, steps: int = STEPS, wanted: int = WANTED) -> str:
        """What is used of these data and of the steps of an attack, where that is less than is wanted."""
        parts = [f"{self.examples} of {given} examples"] if self.examples < min(wanted, given) else []
        if self.tokens and self.tokens < length:
            parts.append(f"the first {self.tokens} of {length} tokens of each")
        if steps < STEPS:
            parts.append(f"attacks of {steps} steps, not {STEPS}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Depth:
    """What of the data each part uses, the steps of attacks, the kinds of changes made to prompts, and options."""

    bits: Share
    attacks: Share
    steps: int = STEPS
    transfer_steps: int = TRANSFER_STEPS
    kinds: Sequence[str] = TOKEN_KINDS
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the probes of robustness."""
    alone: int = BitFrontier.alone_examples
    """Examples that single units are measured in fewer bits on."""
    methods: int = len(BitFrontier.methods)
    """Calibrated methods of rounding that are tried."""
    judged: Judged = "all"
    """Which configurations of bits are judged."""

    def bit_passes(self, model: nn.Module) -> Passes:
        """How often the search over bit widths runs an example."""
        return bit_passes(model, self.bits.examples, self.alone, self.bits.searched, self.judged)

    @property
    def robustness(self) -> Passes:
        """How often robustness runs an example."""
        return robustness_passes(self.steps, self.transfer_steps, self.kinds, self.options)


def affordable(part: str, passes: Passes, one: OneExample, wanted: int, share: float = 1.0) -> Share:
    """As many examples as are wanted if the work allows it; else fewer tokens of each, then fewer examples."""
    tokens, enough = one.tokens, ENOUGH[part]
    while True:
        short = one.shortened(tokens)
        count = min(wanted, int(share * WORK[part] / max(passes.work(short), 1.0)))
        if count >= min(wanted, enough) or tokens <= SHORTEST:
            return Share(max(count, min(wanted, FEWEST[part])), tokens if tokens < one.tokens else 0)
        tokens = max(SHORTEST, tokens // 2)


def affordable_bits(model: nn.Module, one: OneExample, given: int, wanted: int, level: Level) -> Share:
    """What bits are examined on: where tokens have to be given up, more examples make up for it if the work allows.

    Then most of them are judged on, since intervals are as narrow as the tokens judged on are many, and the search does
    with few.
    """
    passes = bit_passes(model, wanted, level.alone, judged=level.judged)
    found = affordable("bit_widths", passes, one, wanted, level.bits)
    if found.examples < wanted and not found.tokens:  # of fewer, each takes more: single units need so many anyway
        return affordable_bits(model, one, given, found.examples, level)
    more = min(MADE_UP, given)
    searched = min(level.searched, more // 4)
    if not found.tokens or not searched:
        return found
    passes = bit_passes(model, more, level.alone, searched, level.judged)
    for tokens in _lengths(one.tokens):
        if more * passes.work(one.shortened(tokens)) <= level.bits * WORK["bit_widths"]:
            return Share(more, tokens, searched)
    return found


def _lengths(tokens: int) -> Iterator[int]:
    """Of examples that are cut, from long to short.

    >>> list(_lengths(128))
    [96, 64, 48, 32, 24, 16]
    """
    while tokens > SHORTEST:
        for length in (3 * tokens // 4, tokens // 2):
            yield max(SHORTEST, length)
        tokens //= 2


def examples_of_text(one: OneExample, *, sampled: bool = False, quick: bool = False) -> int:
    """How many examples are read, or sampled: every one is run once, and sampling takes as long as another pass."""
    share, passes = LEVELS["quick" if quick else "default"].read, Passes(plain=2 if sampled else 1)
    count = int(share * WORK["performance"] / max(passes.work(one), 1.0))
    return max(LEAST_READ, min(EXAMPLES, count - count % 8))


def choose_depth(
    model: nn.Module, one: OneExample, given: int, *, thorough: bool = False, quick: bool = False,
    for_bits: int = WANTED, asked: bool = False, kinds: Sequence[str] = TOKEN_KINDS,
) -> Depth:  # fmt: skip
    """The depth for a model, given what one example takes and how many there are; `one.tokens` 0: none can be cut.

    `for_bits` examples are enough for the bit widths; if the number was `asked` for, they are judged on all of them.
    `kinds` are the changes that can be made to prompts.
    """
    level = LEVELS["quick" if quick else "thorough" if thorough else "default"]
    wanted, for_bits = min(WANTED, given), given if asked else min(for_bits, given)
    if thorough:
        return Depth(Share(for_bits), Share(wanted), kinds=kinds)

    def attacked(steps: int, transfer_steps: int) -> Depth:
        passes = robustness_passes(steps, transfer_steps, kinds, level.robustness)
        share = affordable("robustness", passes, one, wanted, level.share)
        return Depth(
            bits, share, steps, transfer_steps, kinds, level.robustness, level.alone, level.methods, level.judged
        )

    bits = affordable_bits(model, one, given, for_bits, level)
    found = attacked(STEPS, TRANSFER_STEPS)
    less = quick or found.attacks.examples < wanted or found.attacks.tokens
    return attacked(FEWER_STEPS, FEWER_TRANSFER_STEPS) if less else found


def can_shorten(task: Task, batches: Sequence[Any]) -> bool:
    """Whether examples are sequences with a target at every token, so that the first tokens alone make sense."""
    if type(task).take is not Task.take:
        return False
    for batch in batches:
        targets, length = task.targets(batch), token_length(batch)
        if not length or (targets is not None and (targets.is_floating_point() or targets.shape[1:] != (length,))):
            return False
        if targets is None:
            continue
        short = task.targets(resized(task, batch, task.size(batch), min(SHORTEST, length)))
        assert short is not None
        counted, left = ((each[:, 1:] != IGNORE).any(1) for each in (targets, short))
        if bool((counted & ~left).any()):  # the answer to a long question is at its end
            return False
    return True


def shortened(task: Task, batches: Sequence[Any], share: Share, about: dict[str, Any]) -> Batches:
    """The batches with only the first tokens of each example, and these facts about them.

    Batches are joined up to as many tokens as one of them had: passes of fewer tokens take longer for each.
    """
    if not share.tokens:
        return Batches(batches, about)
    cut = [resized(task, batch, task.size(batch), min(share.tokens, token_length(batch))) for batch in batches]
    whole = max(task.size(batch) * token_length(batch) for batch in batches)
    return Batches([*joined(task, cut, examples=max(1, whole // share.tokens))], about)


def timed_part(task: Task, part: Batches, about: Mapping[str, Any]) -> Batches:
    """The first example alone, of as many tokens as the part uses: copies in integers may be a hundred times slower."""
    first = task.take(part[0], 1)
    return Batches([first], {**about, "reduced": f"timed on one example of {token_length(first)} tokens"})
