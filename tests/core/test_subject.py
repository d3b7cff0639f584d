"""The parts that a model is told apart into: named groups, and what is remembered of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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


def test_a_model_that_is_the_same_is_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    subject = Subject(net)
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "named_parameters", None)
        subject.refresh()
    net[1].weight = nn.Parameter(torch.ones(2, 2))
    net.append(nn.Linear(2, 2, bias=False))
    subject.refresh()
    assert subject.names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
    assert subject.parameters[2] is net[1].weight
    other = nn.Sequential(nn.Linear(2, 2))
    subject.model = other
    subject.refresh()
    assert subject.parameters == list(other.parameters())


class ListsItself(nn.Module):
    """Gives only some of its parameters, and others later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.shown = nn.Linear(2, 2), nn.Linear(2, 2), ["a.weight"]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return ((name, p) for name, p in super().named_parameters(*args, **kwargs) if name in self.shown)


def test_a_model_that_lists_its_parameters_itself_is_asked_every_time() -> None:
    net = ListsItself()
    subject = Subject(net)
    net.shown.append("b.bias")
    subject.refresh()
    assert subject.names == ["a.weight", "b.bias"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_model_is_read() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    subject = Subject(scripted)
    subject.refresh()
    assert subject.names == ["0.weight", "0.bias"]
