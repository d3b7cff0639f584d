"""Texts as people mistype them: the same by seed, the share that is asked for, and nothing else changed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnscope.model.robustness.typed_errors import CHANGES, NEIGHBOURS, Changed, distracted

TEXT = "The Quick brown fox, it jumps over 12 lazy dogs.  Then Été naïve STRASSE ß ends here\nand goes on. " * 4


def changed(name: str, share: float, seed: int = 0, text: str = TEXT) -> Changed:
    return CHANGES[name](text, share, random.Random(seed))


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_by_seed_and_as_much_as_is_asked_for(name: str) -> None:
    found = changed(name, 0.1)
    assert found == changed(name, 0.1)
    assert found.text != changed(name, 0.1, seed=1).text
    assert found.changed == max(1, round(0.1 * found.of))
    assert found.text != TEXT
    assert changed(name, 0.0) == Changed(TEXT, 0, found.of)
    assert changed(name, 0.001).changed == 1  # one at least
    assert changed(name, 0.5, text="42!") == Changed("42!", 0, 0)  # there is nothing to change


def places(text: str) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(TEXT, text, strict=True)) if a != b]


def test_typos_are_keys_beside_the_right_one_in_its_case() -> None:
    found = changed("typos", 0.2)
    at = places(found.text)
    assert len(at) == found.changed
    for place in at:
        old, new = TEXT[place], found.text[place]
        assert new.lower() in NEIGHBOURS[old.lower()]
        assert new.isupper() == old.isupper()
    assert set(NEIGHBOURS["s"]) == set("adwezx")
    assert all(key in NEIGHBOURS[other] for key, others in NEIGHBOURS.items() for other in others)


def test_swaps_keep_the_letters_of_each_word() -> None:
    found = changed("letter_swaps", 0.2)
    assert len(places(found.text)) == 2 * found.changed
    for old, new in zip(TEXT.split(), found.text.split(), strict=True):
        assert Counter(old) == Counter(new)


def test_casing_changes_the_case_alone() -> None:
    found = changed("casing", 0.3)
    assert found.text.lower() == TEXT.lower()
    assert len(places(found.text)) == found.changed
    assert "ß" in changed("casing", 1.0).text  # its capital would be two letters


def test_whitespace_keeps_everything_else() -> None:
    found = changed("whitespace", 0.5)
    assert "".join(found.text.split()) == "".join(TEXT.split())


def test_word_order_keeps_the_words_and_the_spaces() -> None:
    found = changed("word_order", 0.2)
    assert Counter(found.text.split()) == Counter(TEXT.split())
    assert [c for c in found.text if c.isspace()] == [c for c in TEXT if c.isspace()]
    moved = [a != b for a, b in zip(TEXT.split(), found.text.split(), strict=True)]
    assert sum(moved) == 2 * found.changed


def test_distractors_come_before_the_text() -> None:
    found = distracted("one two three four five six seven eight nine ten", "a b c d", 0.2)
    assert found == Changed("a b one two three four five six seven eight nine ten", 2, 10)
    assert distracted("one", "a b", 0.0).text == "one"


@given(st.text(max_size=40), st.sampled_from(list(CHANGES)), st.floats(0, 1), st.integers(0, 5))
def test_any_text_can_be_changed(text: str, name: str, share: float, seed: int) -> None:
    found = CHANGES[name](text, share, random.Random(seed))
    assert 0 <= found.changed <= found.of


def test_pythons_own_generator_is_not_used() -> None:
    random.seed(1)
    before = random.getstate()
    for name in CHANGES:
        changed(name, 0.3)
    assert random.getstate() == before
