"""Random values for every option of every packaged probe: accepted, or refused by an error that names the option."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import learnscope as ls
from contract.probes import CHEAP, packaged
from learnscope.core.probe import describe
from learnscope.record import plain_json

QUICK, LONG = 40, 1000
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.sampled_from([-(10**30), 2**63, 10**30]),
    st.floats(allow_nan=True, allow_infinity=True), st.text(max_size=6), st.binary(max_size=3),
    st.sampled_from(["cpu", "native", "epoch", "once", "mean", "channel", "linf", "l2", "update", "(", "", "cuda:99"]),
    st.sampled_from([int, len, object(), 1j, torch.ones(()), torch.ones(2), nn.Linear(1, 1)]),
)  # fmt: skip
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.tuples(st.floats(), st.floats()),
    st.lists(st.integers(-1, 33), max_size=3),
    st.dictionaries(st.text(max_size=3), SCALARS, max_size=2),
    st.sets(st.integers(0, 3)),
)


def options_of(probe: type[ls.Probe]) -> list[str]:
    return [field.name for field in fields(probe)]


def construct(probe: type[ls.Probe], options: dict[str, Any]) -> bool:
    """Whether it was accepted; any other end than a refusal that names an option fails."""
    try:
        made = probe(**options)
    except (ValueError, TypeError) as error:
        message = str(error)
        assert any(name in message or name.removesuffix("s") in message for name in options), message
        assert probe.__name__ in message or any(f"{name}=" in message for name in options), message
        return False
    plain_json(describe(made))
    return True


def check(name: str, data: st.DataObject) -> bool:
    """Draw a configuration and try it; whether it was accepted."""
    probe: type[ls.Probe] = getattr(ls, name)
    required = {key: value for key, value in CHEAP.get(name, {}).items() if key in ("path", "run")}
    chosen = data.draw(st.lists(st.sampled_from(options_of(probe)), min_size=1, max_size=3, unique=True))
    return construct(probe, required | {option: data.draw(VALUES, label=option) for option in chosen})


@pytest.mark.parametrize("name", packaged())
@settings(max_examples=QUICK, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_options_are_accepted_or_refused_by_name(name: str, data: st.DataObject) -> None:
    check(name, data)


@pytest.mark.soak
@pytest.mark.parametrize("name", packaged())
def test_many_more_options(name: str, record_property: Callable[[str, object], None]) -> None:
    ends: Counter[bool] = Counter()

    @settings(max_examples=LONG, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def each(data: st.DataObject) -> None:
        ends[check(name, data)] += 1

    each()
    record_property("configurations", ends.total())
    record_property("accepted", ends[True])
    record_property("refused", ends[False])


@pytest.mark.parametrize("name", packaged())
def test_every_option_refuses_what_it_cannot_be(name: str) -> None:
    """An object of no meaning, for one option after the other."""
    probe: type[ls.Probe] = getattr(ls, name)
    required = {key: value for key, value in CHEAP.get(name, {}).items() if key in ("path", "run")}
    for option in options_of(probe):
        assert not construct(probe, {**required, option: object()}), option
