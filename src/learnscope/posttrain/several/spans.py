"""The part of a text that several models predict after the same characters, whatever tokens each makes of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from learnscope.posttrain.reader import ByteTokenizer
from learnscope.task.shapes import IGNORE


class NoOffsets(TypeError):
    """A tokenizer that does not say which characters its tokens stand for."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as a model reads it: by token its id, where in the text it ends, and whether it is one that marks."""

    ids: list[int]
    ends: list[int]
    special: list[bool]

    def boundaries(self) -> set[int]:
        """Characters after which a token ends."""
        return {end for end, marks in zip(self.ends, self.special, strict=True) if not marks}

    def reach(self, limit: int) -> int:
        """The character up to which so many tokens go."""
        return max(self.ends[:limit], default=0)

    def predicted(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        """The ids up to `stop`, and labels for those tokens that stand for the characters from `start` on."""
        counts = [
            not marks and start < end <= stop for end, marks in zip(self.ends, self.special, strict=True)
        ]  # fmt: skip
        last = max(place for place, counted in enumerate(counts) if counted) + 1
        return self.ids[:last], [t if c else IGNORE for t, c in zip(self.ids[:last], counts[:last], strict=True)]


def tokens_of(tokenizer: Any, text: str) -> Tokens:
    """The text's tokens with their ends. A space before a word belongs to the token that ends after it."""
    if isinstance(tokenizer, ByteTokenizer):
        ends = [place for place, character in enumerate(text, 1) for _ in character.encode()]
        return Tokens(list(text.encode()), ends, [False] * len(ends))
    if not getattr(tokenizer, "is_fast", False):
        raise NoOffsets("its tokenizer does not say which characters its tokens stand for")
    made = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    special = [bool(marks) for marks in made["special_tokens_mask"]]
    ends = [0 if marks else end for (_, end), marks in zip(made["offset_mapping"], special, strict=True)]
    return Tokens(list(made["input_ids"]), list(accumulate(ends, max)), special)


def common_span(read: Sequence[Tokens], limits: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last character after which all of them have a token's end, within all limits.

    What lies before the first is context, which every model needs; None if nothing is left after it.

    >>> words, letters = Tokens([0, 1, 2], [3, 7, 9], [False] * 3), Tokens([0] * 9, [*range(1, 10)], [False] * 9)
    >>> common_span([words, letters], [3, 9]), common_span([words, letters], [3, 8]), common_span([words, letters], [1, 9])
    ((3, 9), (3, 7), None)
    """  # noqa: E501
    reach = min(tokens.reach(limit) for tokens, limit in zip(read, limits, strict=True))
    inside = sorted(end for end in set.intersection(*(tokens.boundaries() for tokens in read)) if end <= reach)
    return (inside[0], inside[-1]) if len(inside) > 1 else None


def digest(*parts: object) -> str:
    """A short name for a text, or for what a model reads: equal for equal ones."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
