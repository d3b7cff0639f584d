"""Which probes there are: when each looks, what it needs and takes, and the names that it records."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from learnscope.core.probe import Probe, Schedule
from learnscope.quantities.base import names_table

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
        "looks": schedule(defaults["at"], defaults["every"]),
        "needs": sorted(probe.needs),
        "uses": sorted(probe.uses),
        "cost": probe.cost or None,
        "runs_the_model": not probe.reads_only,
        "names": None if quantities is None else [quantity.to_json() for quantity in quantities.all()],
    }


def import_probes(source: str) -> None:
    """Import a Python file, or a module by its name, for the probes that it defines."""
    path = Path(source)
    if path.suffix != ".py":
        import_module(source)
        return
    if not path.is_file():
        raise FileNotFoundError(f"{source}: there is no such file; name a Python file or a module with probes")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for the annotations of a class
    spec.loader.exec_module(module)


def schedule(at: str, every: Schedule) -> str:
    """When a probe looks.

    >>> schedule("before_step", 10), schedule("once", 1)
    ('before every 10th step', 'once, when the session opens')
    """
    once = {"once": "once, when the session opens", "end": "once, at the end"}
    where = {"before_step": "before {} step", "after_step": "after {} step", "epoch": "at the end of {} epoch"}
    often = "every" if every == 1 else f"every {every}th" if isinstance(every, int) else "a scheduled"
    return (once | where)[at].format(often)


def page(probes: Iterable[type[Probe]]) -> str:
    """The page of docs: a section for every probe."""
    parts = [DOCS]
    for probe in probes:
        shown = entry(probe)
        facts = [f"Looks {shown['looks']}."]
        facts += [f"Needs {', '.join(shown['needs'])}."] if shown["needs"] else []
        facts += [f"Takes {shown['cost']}."] if shown["cost"] else []
        parts += [f"## {shown['probe']}", shown["summary"], " ".join(facts)]
        parts += [names_table(probe.quantities)] if probe.quantities else []
    return "\n\n".join(part.strip() for part in parts) + "\n"
