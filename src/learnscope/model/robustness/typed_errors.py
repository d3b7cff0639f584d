"""Texts as people mistype, reformat and pad them: a share of what can be changed, drawn by a generator of its own.

Each function changes the share of its places, rounded, one at least if the share is above 0 and there is a place; what
is not named stays as it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
Change = Callable[[str, float, random.Random], "Changed"]


@dataclass(frozen=True, slots=True)
class Changed:
    """A text, and how many of its letters, spaces or words were changed."""

    text: str
    changed: int
    of: int


def _neighbours() -> dict[str, str]:
    """The keys beside each letter's, in its own row and in those above and below."""
    near: dict[str, str] = {}
    for row, keys in enumerate(ROWS):
        for place, key in enumerate(keys):
            others = [(row, place - 1), (row, place + 1), (row - 1, place), (row - 1, place + 1)]
            others += [(row + 1, place - 1), (row + 1, place)]
            near[key] = "".join(ROWS[r][p] for r, p in others if 0 <= r < len(ROWS) and 0 <= p < len(ROWS[r]))
    return near


NEIGHBOURS = _neighbours()


def chosen(places: Sequence[int], share: float, generator: random.Random, *, apart: bool = False) -> list[int]:
    """So many of the places, in order; `apart`: no two neighbours, as many as there is room for."""
    count = min(len(places), max(1, round(share * len(places)))) if share > 0 and places else 0
    if not apart:
        return sorted(generator.sample(list(places), count))
    taken: set[int] = set()
    for place in generator.sample(list(places), len(places)) if count else ():
        if len(taken) < count and not {place - 1, place + 1} & taken:
            taken.add(place)
    return sorted(taken)


def typos(text: str, share: float, generator: random.Random) -> Changed:
    """Letters a–z replaced by a key beside theirs, in the same case."""
    letters, places = list(text), [place for place, letter in enumerate(text) if letter.lower() in NEIGHBOURS]
    taken = chosen(places, share, generator)
    for place in taken:
        other = generator.choice(NEIGHBOURS[text[place].lower()])
        letters[place] = other.upper() if text[place].isupper() else other
    return Changed("".join(letters), len(taken), len(places))


def letter_swaps(text: str, share: float, generator: random.Random) -> Changed:
    """Neighbouring letters of a word exchanged; pairs of the same letter do not count."""
    places = [place for place, (a, b) in enumerate(pairwise(text)) if a.isalpha() and b.isalpha() and a != b]
    letters, taken = list(text), chosen(places, share, generator, apart=True)
    for place in taken:
        letters[place], letters[place + 1] = letters[place + 1], letters[place]
    return Changed("".join(letters), len(taken), len(places))


def casing(text: str, share: float, generator: random.Random) -> Changed:
    """Letters in the other case, where that is one letter too."""
    places = [place for place, letter in enumerate(text) if len(letter.swapcase()) == 1 and letter.swapcase() != letter]
    letters, taken = list(text), chosen(places, share, generator)
    for place in taken:
        letters[place] = text[place].swapcase()
    return Changed("".join(letters), len(taken), len(places))


def whitespace(text: str, share: float, generator: random.Random) -> Changed:
    """Spaces doubled, left out, or made a line break."""
    places = [place for place, letter in enumerate(text) if letter == " "]
    letters, taken = list(text), chosen(places, share, generator)
    for place in taken:
        letters[place] = generator.choice(("  ", "", "\n"))
    return Changed("".join(letters), len(taken), len(places))


def word_order(text: str, share: float, generator: random.Random) -> Changed:
    """Neighbouring words exchanged; the spaces between words stay where they are."""
    parts = re.split(r"(\s+)", text)
    words = [place for place in range(0, len(parts), 2) if parts[place]]
    places = [n for n in range(len(words) - 1) if parts[words[n]] != parts[words[n + 1]]]
    taken = chosen(places, share, generator, apart=True)
    for n in taken:
        first, second = words[n], words[n + 1]
        parts[first], parts[second] = parts[second], parts[first]
    return Changed("".join(parts), len(taken), len(places))


CHANGES: dict[str, Change] = {
    "typos": typos, "letter_swaps": letter_swaps, "casing": casing, "whitespace": whitespace, "word_order": word_order,
}  # fmt: skip
"""What is done to the letters, spaces and words of a text itself, by name."""


def distracted(text: str, other: str, share: float) -> Changed:
    """The first words of another text before this one, as many as this share of its words; one at least."""
    count, words = len(text.split()), other.split()
    taken = words[: max(1, round(share * count))] if share > 0 else []
    return Changed(" ".join([*taken, text]) if taken else text, len(taken), count)
