"""How a test holds recorded numbers against another project's.

    @holds(SOME_REFERENCE)
    def test_it(held, tmp_path):  # the fixtures come after `held`
        held(run, "Probe.name", theirs, "layer")

`held` reads the number from the run's records, takes the tolerance from the table and compares. When the test is done,
every name that the table gives for its references must have been compared.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from learnscope import Run
from learnscope.quantities import quantity_of
from references.table import Reference

INSTALL = "pip install -c constraints.txt -e '.[dev,references]'"


class Held:
    """Compares recorded numbers with those of the references, and counts which names were compared."""

    def __init__(self, references: tuple[Reference, ...]) -> None:
        self._reference = {name: reference for reference in references for name in reference.names}
        self._compared: set[str] = set()

    def __call__(
        self, run: Run, name: str, theirs: float | Mapping[str, float], kind: str = "model", **labels: Any
    ) -> None:
        """`theirs` for the last step: one number, or one a scope. NaN says that ours has to be null."""
        probe, recorded = name.split(".")
        quantity = quantity_of(probe, recorded)
        assert quantity is not None, f"{probe} declares no {recorded}"
        claimed = f"{probe}.{quantity.name}"
        assert claimed in self._reference, f"the table does not claim {claimed} for the references of this test"
        reference = self._reference[claimed]
        ours = _recorded(run, probe, recorded, kind, labels)
        if not isinstance(theirs, Mapping):
            assert len(ours) == 1, f"{name} has scopes {list(ours)}: say which"
            theirs = dict.fromkeys(ours, theirs)
        assert theirs.keys() <= ours.keys(), f"{name} was recorded for {list(ours)} only"
        for scope, expected in theirs.items():
            close = pytest.approx(float(expected), rel=reference.relative, abs=reference.absolute, nan_ok=True)
            assert ours[scope] == close, f"{name} of {scope}: {ours[scope]!r}, but {expected!r} by {reference.call}"
            if math.isfinite(expected):
                self._compared.add(claimed)

    def finish(self) -> None:
        missing = self._reference.keys() - self._compared
        assert not missing, f"the table claims {sorted(missing)}, which this test did not compare"


def _recorded(run: Run, probe: str, name: str, kind: str, labels: Mapping[str, Any]) -> dict[str, float]:
    frame = run.frame(probe, name, kind)
    for label, wanted in labels.items():
        frame = frame[frame[label] == wanted]
    assert len(frame), f"{probe} recorded no {name} of kind {kind} with {dict(labels)}"
    frame = frame[frame.step == frame.step.max()]
    assert frame.scope.is_unique, f"{probe}.{name}: several rows of one scope, give labels"
    return {scope: float(value) for scope, value in zip(frame.scope, frame.value, strict=True)}


def holds(*references: Reference) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a test its first argument, `held`, and checks at its end that it did what the table says of it."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def holding(**fixtures: Any) -> None:
            held = Held(references)
            test(held, **fixtures)
            held.finish()

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name != "held"]
        holding.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        holding.references = references  # type: ignore[attr-defined]
        return holding

    return decorate


def package(module: str) -> Any:
    """A module of the extra `references`; without it the test is skipped, or fails where nothing may be skipped."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = f"{module} is not installed ({error}): {INSTALL}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
