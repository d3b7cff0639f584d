"""The ledger as a file: Parquet, or safetensors where pyarrow is not installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from learnscope.ledger.batch import LedgerError
from learnscope.ledger.table import derived
from learnscope.store.backend import load
from learnscope.store.files import write_atomically

KEY = "learnscope.ledger"
VERSION = 1
_PARQUET = b"PAR1"
NAMES = ("examples.parquet", "examples.safetensors")
"""File names of a ledger in a run folder, in either form."""


def has_parquet() -> bool:
    return find_spec("pyarrow") is not None


def write(path: Path, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], *, durable: bool = True) -> None:
    """Write the arrays atomically. Parquet also gets the derived columns, for other readers."""
    meta = {KEY: json.dumps({"version": VERSION, **facts})}
    if not has_parquet():
        tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=meta), durable=durable)
        return
    pa, parquet = load("pyarrow", "a ledger"), load("pyarrow.parquet", "a ledger")
    columns = {name: pa.array(array) for name, array in {**arrays, **derived(arrays)}.items()}
    body = pa.table(columns).replace_schema_metadata(meta)
    # few numbers come twice: dictionaries would take longer, and room
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False}
    write_atomically(path, lambda temporary: parquet.write_table(body, temporary, **options), durable=durable)


def read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays and the facts stored with them; a file that is not a ledger's is refused, and never executed."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LedgerError(f"{path} cannot be read ({error})") from error
    arrays, text = _read_parquet(path) if start == _PARQUET else _read_safetensors(path)
    if text is None:
        raise LedgerError(f"{path} was not written by a ledger's save: it has no {KEY}")
    try:
        facts = json.loads(text)
        version = int(facts["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"what {path} says about itself is damaged ({error})") from error
    if version > VERSION:
        raise LedgerError(f"{path} has ledger version {version}; this learnscope reads up to {VERSION}")
    return arrays, facts


def _read_parquet(path: Path) -> tuple[dict[str, NDArray[Any]], str | None]:
    pa = load("pyarrow", f"{path}, which is Parquet,")
    parquet = load("pyarrow.parquet", f"{path}, which is Parquet,")
    try:
        body = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"{path} is damaged Parquet: {error}") from error
    text = (body.schema.metadata or {}).get(KEY.encode())
    # null-free by construction: NaN stands for what was not measured, and stays NaN
    return {name: body.column(name).to_numpy() for name in body.column_names}, text and text.decode()


def _read_safetensors(path: Path) -> tuple[dict[str, NDArray[Any]], str | None]:
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
            return arrays, (file.metadata() or {}).get(KEY)
    except SafetensorError as error:
        raise LedgerError(
            f"{path} is neither Parquet nor safetensors ({error}); pickles are never read: save the ledger again"
        ) from error
