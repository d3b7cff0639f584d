"""What the findings of a run are worth, given what was wrong with it.

| outcome | of a fault |
|---|---|
| right | the first alarm, or any cause that is listed, has an expected kind |
| wrong | only other causes are named, or the first alarm is one that misleads |
| symptom | alarms, and no cause among them |
| silent | no alarm |

An alarm is a finding of severity warning or critical. A healthy run is `quiet` or `alarmed`. A script that did not do
what its case claims (a fault that did no harm, a healthy run that did not learn) is `broken` and counts nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo.registry import Case, Check

MEASURED_EVERY = 10
"""Steps between two measurements of the default probes."""


@dataclass(frozen=True)
class Verdict:
    """
    Attributes:
        said: the kinds of all alarms, in the order in which they are listed; causes are marked by a star.
        beside: causes that are listed and not expected.
        first: the first cause that is listed is an expected one.
        late: measurements between the first step that could tell and the finding's own; None where it does not say.
        place: whether the finding names the tensor, layer or group; None where there is none to name.
    """

    name: str
    seed: int
    half: str
    outcome: str
    said: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    first: bool | None = None
    late: int | None = None
    place: bool | None = None
    check: str = ""
    seconds: float = 0.0
    titles: tuple[str, ...] = field(default=())


def judge(case: Case, seed: int, findings: Sequence[Any], check: Check | None, seconds: float = 0.0) -> Verdict:
    """`findings` as `run.findings()` lists them."""
    alarms = [one for one in findings if one.severity in ("warning", "critical")]
    causes = [one for one in alarms if getattr(one, "cause", False)]
    facts: dict[str, Any] = {
        "said": tuple(one.kind + "*" * bool(getattr(one, "cause", False)) for one in alarms),
        "check": f"{check.figure:.4g} {check.claim}" if check else "",
        "seconds": round(seconds, 2),
        "titles": tuple(one.title for one in alarms),
    }
    if check is not None and not check.holds:
        return Verdict(case.name, seed, case.half, "broken", **facts)
    if case.healthy:
        return Verdict(case.name, seed, case.half, "alarmed" if alarms else "quiet", **facts)
    right = [one for one in (*alarms[:1], *causes) if one.kind in case.causes]
    return Verdict(
        case.name, seed, case.half, _outcome(case, alarms, causes, right),
        beside=tuple(one.kind for one in causes if one.kind not in case.causes),
        first=causes[0].kind in case.causes if causes else None,
        late=_late(case, right),
        place=_place(case, right),
        **facts,
    )  # fmt: skip


def _outcome(case: Case, alarms: Sequence[Any], causes: Sequence[Any], right: Sequence[Any]) -> str:
    if not alarms:
        return "silent"
    if right:
        return "right"
    return "wrong" if causes or alarms[0].kind in case.wrong else "symptom"


def _late(case: Case, right: Sequence[Any]) -> int | None:
    since = [one.since for one in right if getattr(one, "since", None) is not None]
    if not since or case.since is None:
        return None
    return max(0, math.ceil((min(since) - case.since) / MEASURED_EVERY))


def _place(case: Case, right: Sequence[Any]) -> bool | None:
    if case.where is None or not right:
        return None
    return any(case.where in scope for one in right for scope in one.scopes)
