"""The ledger of a run, in a folder or in memory."""

from __future__ import annotations

from learnscope.ledger.ledger import Ledger
from learnscope.store.backend import Backend, FolderBackend, MemoryBackend


def ledger_of(backend: Backend) -> Ledger | None:
    """The ledger as it was last stored; None if no examples were tracked."""
    if isinstance(backend, FolderBackend):
        return Ledger.load_from(backend.path)
    arrays = backend.examples if isinstance(backend, MemoryBackend) else None
    return None if arrays is None else Ledger.from_arrays(arrays)
