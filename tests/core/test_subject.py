"""The parts that a model is told apart into: named groups, and what is remembered of them."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from learnscope.core import subject as subjects
from learnscope.core.subject import Subject


@pytest.mark.parametrize(
    ("groups", "error", "words"),
    [
        ({"x": []}, ValueError, r"groups\['x'\]=\[\]"),
        ({"x": None}, ValueError, r"groups\['x'\]=None"),
        ({"x": ["0", ""]}, ValueError, r"groups\['x'\]"),
        ({"": "0"}, TypeError, "cannot be the name of a group"),
        ({3: "0"}, TypeError, "3 cannot be the name of a group"),
        (["0"], TypeError, "a mapping from names to patterns"),
    ],
)
def test_groups_that_name_nothing_are_refused(groups: Any, error: type[Exception], words: str) -> None:
    subject = Subject(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(error, match=words):
        subject.name_groups(groups)
    assert subject.groups == {}


def test_changing_the_users_groups_later_changes_nothing() -> None:
    subject = Subject(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    theirs = {"a": ["0"]}
    subject.name_groups(theirs)
    theirs["a"].append("1")
    assert subject.scopes("named") == {"a": [0, 1]}


def test_segments_do_not_pile_up_where_other_parameters_have_gradients_at_every_step() -> None:
    subject = Subject(nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(12))))
    for step in range(1, 1000):
        positions = [place for place in range(12) if step >> place & 1]
        found = subject.segments("layer", positions)
        assert list(found.scopes) == [str(place) for place in positions]
    assert len(subject._segments) <= subjects.KEPT_SEGMENTS
    kept = subject.segments("model", [1, 2])
    assert subject.segments("model", [1, 2]) is kept
