"""A run as its users see it: records and arrays, findings, and a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from learnscope.record import Finding, Record
from learnscope.store.backend import Backend, FolderBackend
from learnscope.store.files import write_json
from learnscope.store.reader import RunReader

if TYPE_CHECKING:
    import pandas as pd

    from learnscope.findings import Cuts
    from learnscope.ledger import Ledger
    from learnscope.model.updates.patch_info import PatchInfo
    from learnscope.store.compact import CompactInfo


class Run:
    """Everything that was recorded, read from a folder or from memory."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._reader = RunReader(backend)

    @property
    def path(self) -> Path | None:
        """The run folder; None for a run in memory."""
        return self._backend.path if isinstance(self._backend, FolderBackend) else None

    @property
    def reader(self) -> RunReader:
        """The reader that analyses and reports use."""
        return self._reader

    @property
    def manifest(self) -> dict[str, Any]:
        """What `run.json` holds: probes and their fields, the model, the environment, the attempts."""
        return self._reader.manifest

    @property
    def last_step(self) -> int:
        return self._reader.last_step

    @property
    def problems(self) -> list[str]:
        """Lines that could not be read, such as one cut off by a kill."""
        for _ in self._reader.records():
            pass
        return list(self._reader.problems)

    def records(self, probe: str | None = None, *, superseded: bool = False) -> Iterator[Record]:
        """The records in the order of writing; see `RunReader.records`."""
        return self._reader.records(probe, superseded=superseded)

    def frame(
        self, probe: str | None = None, name: str | None = None, kind: str | None = None,
        *, superseded: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """All numbers as a tidy DataFrame, one row per number; arguments select a part."""
        return self._reader.frame(probe, name, kind, superseded=superseded)

    def arrays(self, probe: str, step: int | None = None) -> dict[str, NDArray[Any]]:
        """The arrays that a probe stored at a step (by default its last): logits, labels, predictions…"""
        return self._reader.arrays(probe, step)

    def array_steps(self, probe: str) -> list[int]:
        """The steps at which a probe stored arrays."""
        return self._reader.array_steps(probe)

    def arrays_of(self, record: Record) -> dict[str, NDArray[Any]]:
        """The arrays that were stored with a record; most records have none."""
        return self._backend.arrays(record.arrays) if record.arrays else {}

    def examples(self) -> pd.DataFrame:
        """One row per training example, from an `ExampleLedger`; see `learnscope.ledger.table.frame`."""
        return self.ledger().frame()

    def ledger(self) -> Ledger:
        """The ledger of examples, as an `ExampleLedger` last stored it."""
        from learnscope.ledger.ledger import ledger_of

        ledger = ledger_of(self._backend)
        if ledger is None:
            raise KeyError("no examples were followed in this run: give ls.ExampleLedger() to ls.watch or ls.replay")
        return ledger

    def findings(self, cuts: Cuts | None = None) -> list[Finding]:
        """What the records show, the most severe first."""
        from learnscope.findings import find

        return find(self._reader, cuts)

    def report(self, folder: str | Path | None = None, *, findings: Sequence[Finding] | None = None) -> Path:
        """Write report.md with its figures, by default into the run folder, which then also keeps findings.json.

        `findings` spares looking for them again; with a folder of its own, nothing is written into the run's.
        """
        return self.report_with_findings(folder, findings=findings)[0]

    def report_with_findings(
        self, folder: str | Path | None = None, *, findings: Sequence[Finding] | None = None
    ) -> tuple[Path, list[Finding]]:
        """The same and the findings that it states; the records are read once for both."""
        from learnscope.findings import find
        from learnscope.reading.gather import one_pass
        from learnscope.report.markdown import write_report

        target = Path(folder) if folder is not None else None
        if target is None:
            if self.path is None:
                raise ValueError("this run is in memory: say where the report goes, run.report('folder')")
            target = self.path / "report"
        records = one_pass(self._reader)
        stated = find(records) if findings is None else list(findings)
        if folder is None and self.path is not None:
            write_json(self.path / "findings.json", [finding.to_json() for finding in stated])
        name = self.path.resolve().name if self.path else "run"
        return write_report(records, stated, target, name=name), stated

    def export_patch(self, old: Any, new: Any, path: str | Path | None = None) -> PatchInfo:
        """Write a patch that turns the checkpoint `old` into `new`; see `learnscope.export_patch`. Needs torch.

        Each may also be a step at which the run saved its weights (`w.save_state()`): its floating-point parameters.
        By default the patch goes to `patches/<old>-<new>.safetensors` in the run folder.
        """
        from learnscope.model.updates.patch import export_patch
        from learnscope.model.weights.saved_steps import weights_at

        def weights(given: Any) -> Any:
            if not isinstance(given, int):
                return given
            if self.path is None:
                raise ValueError(f"this run is in memory and keeps no weights of step {given}: pass a checkpoint")
            return weights_at(self.path, given)

        return export_patch(weights(old), weights(new), self._patch_path(old, new) if path is None else path)

    def _patch_path(self, old: Any, new: Any) -> Path:
        names = [str(side) if isinstance(side, int) else Path(side).stem for side in (old, new) if _has_name(side)]
        if self.path is None or len(names) < 2:
            missing = "this run is in memory" if self.path is None else "weights in memory have no name"
            raise ValueError(f"{missing}: say where the patch goes, run.export_patch(old, new, 'patch.safetensors')")
        return self.path / "patches" / f"{'-'.join(names)}.safetensors"

    def compact(self) -> CompactInfo:
        """Turn the records of this finished run into Parquet; see `learnscope.store.compact.compact`."""
        from learnscope.store.compact import compact

        if self.path is None:
            raise ValueError("this run is in memory: there is no file to compact")
        return compact(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path) if self.path else 'in memory'!r})"


def open_run(path: str | Path) -> Run:
    """Open a run folder for reading, also while it is being written. Does not need torch."""
    return Run(FolderBackend.existing(Path(path)))


def _has_name(checkpoint: Any) -> bool:
    return isinstance(checkpoint, int | str | Path)
