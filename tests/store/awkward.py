"""Runs made by hand or by hypothesis, with all that a record may hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from learnscope.record import SCHEMA_VERSION, Column, Record, Table
from learnscope.store.backend import FolderBackend

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAME = st.sampled_from(["norm", "loss", "ε", "it's", 'a"b', "日本 😀", "", "step"])
NUMBER = st.one_of(
    st.none(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
)
LABEL = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**40), 2**40), st.sampled_from([1e-6, 0.1, 1.0, 0.0, -0.0, 1e-300, 12345.678])
)
LABELS = st.dictionaries(st.sampled_from(["stage", "threshold", "step", "label_step", "$x", "ü"]), LABEL, max_size=3)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    scopes = draw(st.lists(NAME, max_size=4))
    columns = []
    for name in draw(st.lists(NAME, max_size=3)):
        values = draw(st.lists(NUMBER, min_size=len(scopes), max_size=len(scopes)))
        reasons = st.sampled_from(["nan", "no gradient", "ñ 😀", ""])
        status = {i: draw(reasons) for i, value in enumerate(values) if value is None and draw(st.booleans())}
        columns.append(Column(name, values, draw(LABELS), status))
    return Table(draw(NAME), scopes, columns)


@st.composite
def records(draw: st.DrawFn) -> Record:
    fields: dict[str, Any] = {
        "probe": draw(NAME), "step": draw(st.integers(0, 5)), "phase": draw(NAME), "source": draw(NAME),
        "time": draw(st.floats(0, 2e9)), "cost": draw(st.floats(0, 10)),
        "epoch": draw(st.one_of(st.none(), st.integers(0, 3))), "attempt": draw(st.integers(0, 2)),
        "tables": draw(st.lists(tables(), max_size=3)), "notes": draw(LABELS),
        "error": draw(st.one_of(st.none(), TEXT)),
    }  # fmt: skip
    return Record(**fields)


def plain(step: int = 1, probe: str = "P", attempt: int = 0, **extra: Any) -> Record:
    """A record with the usual things in it: 4 numbers, one of them missing."""
    columns = [
        Column("norm", [1.5 * step, None], {"stage": "stepped"}, {1: "no gradient"}),
        Column("share", [0.25, 1.0], {"threshold": 1e-6}),
    ]
    fields = {"epoch": 0, "tables": [Table("layer", ["a", "b"], columns)], **extra}
    return Record(
        probe=probe, step=step, phase="after_step", source="watch", time=1e9 + step, cost=0.001, attempt=attempt,
        **fields,
    )  # fmt: skip


def write_run(
    folder: Path, written: Sequence[Record | bytes], attempts: Sequence[int] = (0,), status: str = "finished"
) -> Path:
    """A run folder with these records; bytes are lines as they are. `attempts` are the steps they went on from."""
    backend = FolderBackend.create(folder)
    starts = [{"attempt": i, "start_step": start, "started": 1e9 + i} for i, start in enumerate(attempts)]
    manifest = {"schema": SCHEMA_VERSION, "source": "watch", "status": status, "attempts": starts}
    backend.put_manifest({**manifest, "model": {"class": "Net", "parameters": 10}})
    backend.close()
    append(folder, written)
    return folder


def append(folder: Path, written: Sequence[Record | bytes]) -> None:
    lines = [line if isinstance(line, bytes) else line.to_json().encode() for line in written]
    with (folder / "records.jsonl").open("ab") as file:
        file.write(b"".join(line + b"\n" for line in lines))


def assert_identical(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Equal in columns, order, types and every value, −0 and None and NaN told apart."""
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    for name in one.columns:
        assert list(map(_exactly, one[name])) == list(map(_exactly, other[name])), name


def _exactly(value: Any) -> tuple[str, str]:
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    return type(value).__name__, repr(value)
