"""What a run keeps of its examples, for those who read it: no ledger is made that could go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learnscope.ledger import files, table
from learnscope.ledger.batch import LedgerError
from learnscope.ledger.columns import dtype_of
from learnscope.store.backend import Backend, FolderBackend, MemoryBackend

if TYPE_CHECKING:
    import pandas as pd

NONE_FOLLOWED = "no examples were followed in this run: give ls.ExampleLedger() to ls.watch or ls.replay"


def stored_arrays(backend: Backend) -> dict[str, NDArray[Any]] | None:
    """As `Ledger.arrays` of the ledger as it was last stored; None if no examples were followed."""
    found: Any = None
    if isinstance(backend, FolderBackend):
        path = next((path for name in files.NAMES if (path := backend.path / name).exists()), None)
        found = None if path is None else files.read(path)[0]
    elif isinstance(backend, MemoryBackend):
        found = backend.examples
    return None if found is None else _in_order(table.checked(found))


def stored_frame(backend: Backend) -> pd.DataFrame | None:
    """One row per example, in the order of their ids; None if no examples were followed."""
    arrays = stored_arrays(backend)
    return None if arrays is None else table.frame(arrays)


def _in_order(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    arrays = {name: np.asarray(array, dtype_of(name)) for name, array in arrays.items()}
    ids = arrays["id"]
    if any(array.shape != ids.shape or array.ndim != 1 for array in arrays.values()):
        raise LedgerError("these are not the arrays of a ledger: they have different lengths")
    if not bool(np.all(ids[1:] > ids[:-1])):  # another program may have written them
        order = np.argsort(ids, kind="stable")
        arrays = {name: array[order] for name, array in arrays.items()}
    return table.with_unmeasured(arrays, np.nan)
