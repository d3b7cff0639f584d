"""Runs that other tools recorded, as runs of learnscope: TensorBoard, wandb, the Hugging Face Trainer, CSV.

    source ─places─> files ─readers─> Foreign (curves over steps) ─mapping─> entries ─writing─> run folder

Nothing is guessed silently: `mapping` says for each foreign name what it became, and run.json keeps it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from learnscope.importing.foreign import Foreign, Progress
from learnscope.importing.mapping import NOTHING, Entry, Wanted, mapped
from learnscope.importing.places import Format, Place, find_places
from learnscope.importing.writing import write, write_folder
from learnscope.options import did_you_mean
from learnscope.run import Run
from learnscope.store.backend import FolderBackend, MemoryBackend
from learnscope.store.errors import RunError

__all__ = ["import_run", "import_runs"]


def _no_progress(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Options:
    """How files are read, and what their names mean."""

    map: Wanted = field(default_factory=dict)
    step: str | None = None
    leave_out: Sequence[str] = ()

    def read(self, place: Place, progress: Progress = _no_progress) -> Foreign:
        return place.read(step=self.step, leave_out=self.leave_out, progress=progress)

    def read_all(
        self, places: Sequence[Place], problems: dict[str, str], progress: Progress = _no_progress
    ) -> list[Foreign]:
        """Those that can be read; of the others `problems` says why, unless none can."""
        sources: list[Foreign] = []
        first: RunError | None = None
        for place in places:
            try:
                sources.append(self.read(place, progress))
            except RunError as error:
                first = first or error
                problems[place.name] = str(error)
        if not sources and first is not None:
            raise first
        there = {name: None for source in sources for name in (*source.curves, *source.left_out)}
        for name in (*self.map, *self.leave_out):
            if name not in there:
                raise RunError(
                    f"none of the trainings has {name!r}.{did_you_mean(name, there)} There are: {', '.join(there)}"
                )
        return sources

    def entries(self, source: Foreign) -> list[Entry]:
        """What each name of a source becomes; names of other sources among several are not asked for here."""
        left_out = {name: NOTHING for name in self.leave_out if name in source.curves}
        return mapped(source, {name: self.map[name] for name in self.map if name in source.curves} | left_out)

    def write(self, source: Foreign, run: str | Path | None, progress: Progress = _no_progress) -> Run:
        entries = self.entries(source)
        if run is None:
            memory = MemoryBackend()
            write(source, entries, memory, progress)
            return Run(memory)
        written = write_folder(Path(run), lambda backend: write(source, entries, backend, progress))
        return Run(FolderBackend.existing(written))


def import_run(
    source: str | Path, run: str | Path | None = None, *, format: Format = "auto", map: Wanted | None = None,
    step: str | None = None, leave_out: Sequence[str] = (),
) -> Run:  # fmt: skip
    """Read one training that another tool recorded, as a run that findings, reports, comparisons and queries take.

    Args:
        source: a folder or file of TensorBoard, wandb or the Hugging Face Trainer, or a CSV file.
        run: the folder to write; if it holds a run already, `name-2`, `name-3`, … is taken. None keeps it in memory.
        format: `tensorboard`, `wandb`, `trainer` or `csv`; by default it is seen from the files.
        map: what foreign names mean, where that is not seen from them: `{"xent": "Loss.loss"}`. Besides a quantity,
            `"own"` keeps a name, `"nothing"` leaves it out, `"epoch"` is the epoch of the records.
        step: the column or name that counts steps; `"order"` numbers values in the order in which they were written.
        leave_out: columns of a table that are not to be read at all.

    What became of each name is in `run.manifest["imported"]["names"]`; what could not be read in `run.problems`.
    """
    places = find_places(Path(source), format)
    if len(places) > 1:
        listed = ", ".join(f"{place.name} ({place.format})" for place in places[:8])
        more = f" and {len(places) - 8} more" if len(places) > 8 else ""
        raise RunError(
            f"{source} holds {len(places)} trainings: {listed}{more}. Name one of them, say which format=, or import "
            "all with ls.import_runs"
        )
    options = Options(map or {}, step, leave_out)
    return options.write(options.read_all(places, {})[0], run)


def import_runs(
    source: str | Path, runs: str | Path, *, format: Format = "auto", map: Wanted | None = None,
    step: str | None = None, leave_out: Sequence[str] = (),
) -> list[Run]:  # fmt: skip
    """Read all trainings at or below a folder, each as a run in the folder `runs`; see `import_run`.

    Those that cannot be read are named in a warning, and the others are written; if none can, the error is raised.
    """
    places = find_places(Path(source), format)
    options, problems = Options(map or {}, step, leave_out), dict[str, str]()
    sources = options.read_all(places, problems)
    if problems:
        told = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        warnings.warn(f"{len(problems)} of {len(places)} trainings were not imported: {told}", stacklevel=2)
    return [options.write(each, Path(runs) / each.name) for each in sources]
