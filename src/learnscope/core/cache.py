"""Results computed at a moment, shared by its probes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Cache(dict[Any, Any]):
    """Results by key. Sealed while weights are exchanged: nothing may be computed from those."""

    sealed = False

    @contextmanager
    def sealing(self) -> Iterator[None]:
        self.sealed = True
        try:
            yield
        finally:
            self.sealed = False
