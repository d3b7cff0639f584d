"""Which probes there are: when each looks, what it needs and takes, and the names that it records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from learnscope.core.probe import Probe
from learnscope.quantities.base import Quantity, names_table

DOCS = """# Probes and their names

Every probe, when it looks, what it needs, what a firing takes, and the names that it records. This page is made from
the declarations in `learnscope/quantities/` by `make names`; `learnscope probes` prints the same.

A name is recorded for the model as a whole, or for each of its layers, components, optimizer groups (`group`), groups
that you named (`named`), tensors, or what else the column *of* says. Labels tell apart several numbers of one name.
"""


def entry(probe: type[Probe]) -> dict[str, Any]:
    """A probe in plain values: what `learnscope probes --json` prints."""
    defaults = {field.name: field.default for field in fields(probe) if field.default is not MISSING}
    quantities = probe.quantities
    return {
        "probe": probe.__name__,
        "module": probe.__module__,
        "family": probe.__module__.split(".")[2] if probe.__module__.startswith("learnscope.probes.") else None,
        "summary": (probe.__doc__ or "").strip().split("\n")[0],
        "at": defaults["at"],
        "every": defaults["every"] if isinstance(defaults["every"], int) else "a function of the step",
        "needs": sorted(probe.needs),
        "uses": sorted(probe.uses),
        "cost": probe.cost or None,
        "runs_the_model": not probe.reads_only,
        "names": None if quantities is None else [_plain(quantity) for quantity in quantities.all()],
    }


def _plain(quantity: Quantity) -> dict[str, Any]:
    kept = ("name", "meaning", "when", "unit", "source", "better", "scale")
    return {
        **{field: getattr(quantity, field) or None for field in kept},
        "kinds": list(quantity.kinds),
        "labels": dict(quantity.labels),
    }


def schedule(shown: dict[str, Any]) -> str:
    """When a probe looks by default.

    >>> schedule({"at": "before_step", "every": 10}), schedule({"at": "once", "every": 1})
    ('before every 10th step', 'once, when the session opens')
    """
    once = {"once": "once, when the session opens", "end": "once, at the end"}
    if shown["at"] in once:
        return once[shown["at"]]
    every = shown["every"]
    if every == 1:
        often = "every"
    elif isinstance(every, int):
        often = f"every {every}th"
    else:
        often = "a scheduled"
    where = {"before_step": "before {} step", "after_step": "after {} step", "epoch": "at the end of {} epoch"}
    return where[shown["at"]].format(often)


def page(probes: Iterable[type[Probe]]) -> str:
    """The page of docs: a section for every probe."""
    parts = [DOCS]
    for probe in probes:
        shown = entry(probe)
        facts = [f"Looks {schedule(shown)}."]
        facts += [f"Needs {', '.join(shown['needs'])}."] if shown["needs"] else []
        facts += [f"Takes {shown['cost']}."] if shown["cost"] else []
        parts += [f"## {shown['probe']}", shown["summary"], " ".join(facts)]
        parts += [names_table(probe.quantities)] if probe.quantities else []
    return "\n\n".join(part.strip() for part in parts) + "\n"
