"""Probes and a sink that import a module late which draws from every generator, as some packages do."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch

import learnscope as ls
from learnscope.record import Measurement, Table


def import_late(name: str) -> None:
    """The first time, as an import of a package that draws."""
    if f"drawing_{name}" not in sys.modules:
        sys.modules[f"drawing_{name}"] = ModuleType(f"drawing_{name}")
        random.random(), np.random.random(), torch.rand(1)


class LateProbe(ls.Probe):
    """Only reads; imports in each of its parts."""

    every: int = 2
    reads_only: ClassVar[bool] = True

    def open(self, moment: Any) -> None:
        import_late("open")

    def prepare(self, moment: Any) -> None:
        import_late("prepare")

    def measure(self, moment: Any) -> Any:
        import_late("measure")
        return Measurement(finish=self.finish)

    def finish(self, tables: Sequence[Table]) -> Sequence[Table]:
        import_late("finish")
        return tables

    def settle(self, state: dict[str, Any]) -> None:
        import_late("settle")


class CarelessProbe(ls.Probe):
    """Draws at every measurement and says that it only reads: the control that a comparison must notice."""

    every: int = 1
    reads_only: ClassVar[bool] = True

    def measure(self, moment: Any) -> Any:
        return {"drawn": random.random() + np.random.random() + float(torch.rand(1))}


class LateSink:
    """Imports at its first record and when it is closed."""

    def write(self, record: Any) -> None:
        import_late("write")

    def close(self) -> None:
        import_late("close")
