"""What the zoo holds: a case is a script, what is wrong with it, and since when.

A script takes `watch`, which is `learnscope.watch` with the folder given (or another project's watcher with the same
arguments), and a seed. It trains as a user would and says at the end, by a `Check`, whether it really did what its case
claims: a healthy run learned, a fault did harm.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

Watch = Callable[..., Any]


@dataclass(frozen=True)
class Check:
    """A figure that a script reached and whether that is what its case claims."""

    figure: float
    claim: str
    holds: bool


Script = Callable[[Watch, int], Check | None]


def above(figure: float, bound: float) -> Check:
    return Check(float(figure), f"> {bound:g}", bool(figure > bound))


def below(figure: float, bound: float) -> Check:
    return Check(float(figure), f"< {bound:g}", bool(figure < bound))


def worse_than(loss: float, bound: float) -> Check:
    """For a fault after which the loss may be anything, a number that is not finite included."""
    return Check(float(loss), f"no better than {bound:g}", bool(not math.isfinite(loss) or loss > bound))


@dataclass(frozen=True)
class Case:
    """
    Attributes:
        name: the kind of fault or of training, and after a comma the architecture or the size.
        causes: kinds of findings that name what is wrong; none for a healthy run.
        wrong: kinds that would send a reader to the wrong place. Every cause that is not expected is wrong; these are
            wrong as symptoms too.
        since: the first step whose records could tell; None where it depends on the course of the run, as with
            overfitting, and being late cannot be judged.
        where: what the scopes of the finding should contain: a tensor, a layer or a group.
    """

    name: str
    script: Script
    causes: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    since: int | None = None
    where: str | None = None
    seeds: tuple[int, ...] = (0,)

    @property
    def kind(self) -> str:
        return self.name.partition(",")[0]

    @property
    def half(self) -> str:
        """Which half of the kinds: cuts may be chosen on `tuning`, and are judged on `judged`.

        By the hash of the kind, so that the same fault on another architecture is in the same half. Cases of the
        folder `unseen` were written when the analyses stood as they are, and make parts of their own: those of its
        files `blind_…` were judged only once all else was done, and those of `second_…`, then of `third_…`, of
        `fourth_…` and of `fifth_…` were written after that, by some who had not read the analyses.
        """
        if ".unseen.fifth_" in f".{self.script.__module__}":
            return "fifth"
        if ".unseen.fourth_" in f".{self.script.__module__}":
            return "fourth"
        if ".unseen.third_" in f".{self.script.__module__}":
            return "third"
        if ".unseen.second_" in f".{self.script.__module__}":
            return "second"
        if ".unseen.blind_" in f".{self.script.__module__}":
            return "blind"
        if ".unseen." in f".{self.script.__module__}":
            return "unseen"
        return ("tuning", "judged")[hashlib.sha256(self.kind.encode()).digest()[0] % 2]

    @property
    def healthy(self) -> bool:
        return not self.causes


CASES: dict[str, Case] = {}


def fault(
    name: str, causes: Iterable[str], *, since: int | None = 1, wrong: Iterable[str] = (), where: str | None = None,
    seeds: Iterable[int] = (0, 1),
) -> Callable[[Script], Script]:  # fmt: skip
    return _register(lambda script: Case(name, script, frozenset(causes), frozenset(wrong), since, where, tuple(seeds)))


def healthy(name: str, *, seeds: Iterable[int] = (0, 1, 2)) -> Callable[[Script], Script]:
    return _register(lambda script: Case(name, script, seeds=tuple(seeds)))


def _register(make: Callable[[Script], Case]) -> Callable[[Script], Script]:
    def decorate(script: Script) -> Script:
        case = make(script)
        earlier = CASES.get(case.name)
        if earlier and _place(earlier.script) != _place(script):  # pytest may import a file twice
            raise ValueError(f"two cases are called {case.name!r}")
        CASES[case.name] = case
        return script

    return decorate


def _place(script: Any) -> tuple[str, str]:
    return script.__code__.co_filename, script.__qualname__


@cache
def collect() -> dict[str, Case]:
    """Every case of the zoo, by name: those of all files of `faults`, `healthy` and `unseen`."""
    for folder in ("faults", "healthy", "unseen"):
        package = importlib.import_module(f"zoo.{folder}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"zoo.{folder}.{module.name}")
    return dict(sorted(CASES.items()))
