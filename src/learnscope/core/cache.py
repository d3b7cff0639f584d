"""What has been computed at a moment, for all who ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Cache(dict[Any, Any]):
    """Results by what was asked for. Sealed while weights are exchanged."""

    sealed = False
    """What is not computed yet must not be computed from a variant of the weights."""

    @contextmanager
    def sealing(self) -> Iterator[None]:
        self.sealed = True
        try:
            yield
        finally:
            self.sealed = False
