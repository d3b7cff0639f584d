"""A reference: what recorded numbers are held against, how closely, and why so closely."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Names, as `Probe.name`, and what they are held against."""

    names: tuple[str, ...]
    call: str
    """The function of the project, or the formula."""
    project: str
    """As it is installed; empty for the formula of a paper, which is written down once more in the test."""
    relative: float
    absolute: float
    why: str
    """Why the tolerance is what it is."""
    paper: str = ""


EXACT = "a count, or a ratio of two: equal but for the last digit"
WIDE = "both in float64; sums in another order"
SPLITS = "logits in float32, on both sides the same ones; then float64"


def of(probe: str, names: str) -> tuple[str, ...]:
    return tuple(f"{probe}.{name}" for name in names.split())


def held(
    names: Sequence[str], project: str, call: str, why: str, relative: float = 1e-9, absolute: float = 0.0
) -> Reference:
    return Reference(tuple(names), call, project, relative, absolute, why)


def formula(
    names: Sequence[str], paper: str, text: str, why: str, relative: float = 1e-9, absolute: float = 0.0
) -> Reference:
    return Reference(tuple(names), text, "", relative, absolute, why, paper)


def version(project: str) -> str:
    """The version in constraints.txt, with which the tests ran; empty if it is not there."""
    pins = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
    plain = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in pins.items()}
    return plain.get(re.sub(r"[-_.]+", "-", project).lower(), "")
