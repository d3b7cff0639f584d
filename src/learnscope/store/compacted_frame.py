"""The table and the last step of a compacted run, straight from Parquet, without a Python object for every number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from learnscope.record import SKIPPED
from learnscope.store.backend import load
from learnscope.store.columnar.columns import is_superseded
from learnscope.store.parts import LINES, Parts, opened

if TYPE_CHECKING:
    import pandas as pd


def compacted_frame(
    folder: Path,
    starts: Mapping[int, int] | None,
    probe: str | None,
    name: str | None,
    kind: str | None,
    declared: Iterable[str] = (),
) -> tuple[pd.DataFrame, list[str]] | None:
    """The table and the problems of a run folder; None if it is not compacted, or holds unusual values.

    `starts` is the start step of each attempt; None keeps superseded records too. `declared`: see `frame_of`.
    """
    with opened(folder) as parts:
        if not _all_compacted(folder, parts):
            return None
        arrow = load("pyarrow", "a compacted run")
        from learnscope.store.flatten import Flat, Irregular

        try:
            flat = Flat(starts or {}, probe, name, kind)
            for batch in parts.parquet.iter_batches():
                flat.add(batch)
            return flat.frame(declared), list(parts.compacted.problems)
        except (Irregular, OSError, arrow.ArrowInvalid):
            return None


def compacted_last_step(folder: Path, starts: Mapping[int, int]) -> int | None:
    """The last recorded step; None if it is not to be had from Parquet alone."""
    with opened(folder) as parts:
        if not _all_compacted(folder, parts):
            return None
        arrow = load("pyarrow", "a compacted run")
        try:
            table = parts.parquet.read(["step", "attempt", "phase", "json"])
        except (OSError, arrow.ArrowException):
            return None
        if table.column("json").null_count < table.num_rows or table.column("step").null_count:
            return None
        step, attempt = (table.column(name).to_numpy() for name in ("step", "attempt"))
        taken = load("pyarrow.compute", "a compacted run").not_equal(table.column("phase"), SKIPPED).to_numpy()
        stays = ~is_superseded(attempt, step, starts) & taken
        return int(step[stays].max()) if stays.any() else 0


def _all_compacted(folder: Path, parts: Parts) -> bool:
    """Whether there are no lines besides those in Parquet."""
    return parts.parquet is not None and (parts.lines is None or (folder / LINES).stat().st_size <= parts.start)
