"""The probes that come with learnscope: a file each, named like the class, `weight_spectrum.py` for `WeightSpectrum`.

They are found by their files: a new one has to be listed nowhere.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learnscope.core.probe import Probe


@cache
def probe_modules() -> dict[str, str]:
    """The module of every probe of the package, by the name of its class. Imports none of them."""
    modules = {}
    for path in sorted(Path(__file__).parent.glob("*/*.py")):
        name = "".join(part.capitalize() for part in path.stem.split("_"))
        if f"class {name}(" in path.read_text(encoding="utf-8"):
            modules[name] = f"{__name__}.{path.parent.name}.{path.stem}"
    return dict(sorted(modules.items()))


def __getattr__(name: str) -> Any:
    if name not in probe_modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(probe_modules()[name]), name)


def __dir__() -> list[str]:
    return [*probe_modules(), "all_probes", "probe_modules"]


def all_probes() -> list[type[Probe]]:
    """Every class of probe in this process by name, the package's first, then the user's own."""
    from learnscope.core.probe import Probe

    own = [getattr(import_module(module), name) for name, module in probe_modules().items()]
    others = {probe for probe in _below(Probe) if not probe.__module__.startswith("learnscope.")}
    return [*own, *sorted(others, key=lambda probe: (probe.__name__, probe.__module__))]


def _below(cls: type[Probe]) -> set[type[Probe]]:
    below = set(cls.__subclasses__())
    return below.union(*(_below(probe) for probe in below))
