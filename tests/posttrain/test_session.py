"""Probes fired one by one at a finished model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.posttrain.session import AuditSession
from learnscope.quantities import Quantity
from learnscope.reading.cells import value

SUM = Quantity("of all logits", name="sum")
DATA = [(torch.arange(24.0).reshape(8, 3), torch.arange(8) % 2)]


class Counted(ls.Probe):
    """Asks for something expensive."""

    scale: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"holdout"})

    def measure(self, moment: ls.Moment) -> dict[str, Any]:
        seen = list(moment.track([1, 2, 3], "counting"))
        part = {"what": "sum", "scale": self.scale}
        return moment.remember(part, lambda: {"sum": self.scale * float(moment.holdout.logits.sum()), "n": len(seen)})


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_the_last_word_of_every_probe_is_kept() -> None:
    session = AuditSession(model())
    session.measure(ls.Holdout(), DATA)
    session.measure(Counted(), DATA)
    twice = session.measure(Counted(scale=2.0), DATA)
    frame = session.run.frame()
    assert set(frame["probe"]) == {"Holdout", "Counted"}
    [kept] = frame[(frame["probe"] == "Counted") & (frame["name"] == "sum")]["value"]
    assert kept == value(twice, SUM)
    assert session.record("Counted") == twice
    assert session.record("Attacks") is None
    assert session.run.manifest["probes"]["Counted"]["scale"] == 2.0


def test_the_same_weights_on_the_same_data_are_not_computed_twice(tmp_path: Path) -> None:
    first = AuditSession(model(), cache=tmp_path)
    numbers = [value(first.measure(Counted(), DATA), SUM) for _ in range(2)]
    other = AuditSession(model(), cache=tmp_path)
    numbers.append(value(other.measure(Counted(), list(DATA)), SUM))
    assert (first.memo.computed, other.memo.computed) == (1, 0)
    assert len(set(numbers)) == 1
    # other options, other data and other weights are: also weights written past the version counter
    other.measure(Counted(scale=3.0), DATA)
    other.measure(Counted(), [(DATA[0][0] + 1, DATA[0][1])])
    other.model.weight.data.mul_(2)
    assert value(other.measure(Counted(), DATA), SUM) != numbers[0]
    assert other.memo.computed == 3


def test_looks_together_share_what_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session = AuditSession(model())
    passes: list[int] = []
    session.model.register_forward_hook(lambda *_: passes.append(1))
    with session.sharing(DATA):
        session.measure(ls.Holdout(), DATA)
        session.measure(Counted(), DATA)
    assert len(passes) == 1
    session.measure(Counted(), DATA)
    assert len(passes) == 1, "remembered"
    session.measure(ls.Holdout(), DATA)
    assert len(passes) == 2


def test_what_fails_is_raised() -> None:
    class Broken(ls.Probe):
        def measure(self, moment: ls.Moment) -> None:
            raise ArithmeticError("broken on purpose")

    session = AuditSession(model())
    with pytest.raises(ArithmeticError, match="on purpose"):
        session.measure(Broken(), DATA)
    assert session.run.frame().empty
    with pytest.raises(TypeError, match="empty"):
        session.measure(Counted(), [])
