"""Every name that a probe records, declared once: one module a family, one class a probe. Needs no torch."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from learnscope.quantities.base import Quantities, Quantity

__all__ = ["Quantities", "Quantity", "declared", "quantity_of"]


@cache
def declared() -> dict[str, type[Quantities]]:
    """The quantities of every probe of the package, by the probe's name."""
    homes = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {
        cls.probe: cls
        for home in homes
        for cls in vars(home).values()
        if isinstance(cls, type) and issubclass(cls, Quantities) and cls.__module__ == home.__name__ and cls.records
    }


@cache
def quantity_of(probe: str, name: str) -> Quantity | None:
    """What a probe's recorded name means; None for a user's own that nobody declared."""
    quantities = declared().get(probe)
    return quantities.of(name) if quantities else None
