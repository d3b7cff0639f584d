"""A run in memory written as a folder, in place of an earlier run of the same kind."""

from __future__ import annotations

from pathlib import Path

from learnscope.store.backend import FolderBackend, MemoryBackend, RunError
from learnscope.store.files import write_json, write_text


def check_replaceable(folder: Path, mark: str) -> None:
    """Refuse a folder with a run whose manifest does not bear the mark: what others recorded is never overwritten."""
    files = ("run.json", "records.jsonl", "records.parquet")
    if not any((folder / file).exists() for file in files):
        return
    if not (folder / "run.json").is_file() or mark not in FolderBackend(folder).manifest():
        raise RunError(f"{folder} already holds another run, which would be overwritten: name another folder")


def replace_run(run: MemoryBackend, folder: Path) -> None:
    """Write the run; each of its files is the earlier one or the new one, never a part. See `check_replaceable`."""
    records = list(run.records([]))
    lines = [record.to_json() for record in records]
    for reference in dict.fromkeys(record.arrays for record in records):
        if reference is not None:
            FolderBackend(folder).put_arrays(reference, run.arrays(reference))
    write_text(folder / "records.jsonl", "".join(f"{line}\n" for line in lines))
    (folder / "records.parquet").unlink(missing_ok=True)  # of the earlier run, if that was compacted
    write_json(folder / "run.json", run.manifest())
