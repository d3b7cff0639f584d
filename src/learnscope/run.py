"""A run as its users see it: records and arrays, findings, and a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from numpy.typing import NDArray

from learnscope.record import Finding, Record
from learnscope.record.findings_list import Findings
from learnscope.store.backend import FolderBackend
from learnscope.store.files import write_json
from learnscope.store.reader import RunReader

if TYPE_CHECKING:
    import pandas as pd

    from learnscope.findings import Cuts
    from learnscope.findings.checks import Check
    from learnscope.ledger import Ledger
    from learnscope.ledger.looks import Look
    from learnscope.model.updates.patch_info import PatchInfo
    from learnscope.store.compact import CompactInfo

Format = Literal["markdown", "html", "png"]


class Run(RunReader):
    """Everything that was recorded, read from a folder or from memory."""

    @property
    def path(self) -> Path | None:
        """The run folder; None for a run in memory."""
        return self.backend.path if isinstance(self.backend, FolderBackend) else None

    @property
    def reader(self) -> RunReader:
        """The run as analyses and reports read it."""
        return self

    @property
    def problems(self) -> list[str]:
        """Lines that could not be read, such as one cut off by a kill, and records that are not there; of an imported
        run also what could not be read of its source."""
        from learnscope.ledger.shown import shown_of

        for _ in self.records():
            pass
        return [*self.last_problems, *self.losses, *shown_of(self.backend)[1], *self.source_problems]

    def arrays_of(self, record: Record) -> dict[str, NDArray[Any]]:
        """The arrays that were stored with a record; most records have none."""
        return self.backend.arrays(record.arrays) if record.arrays else {}

    def examples(self) -> pd.DataFrame:
        """One row per training example, from an `ExampleLedger`; see `learnscope.ledger.table.frame`."""
        from learnscope.ledger.stored import NONE_FOLLOWED, stored_frame

        frame = stored_frame(self.backend)
        if frame is None:
            raise KeyError(NONE_FOLLOWED)
        return frame

    def suspicious_labels(self) -> pd.DataFrame:
        """Examples whose label the model doubted on average over their presentations, the most doubtful first.

        From an `ExampleLedger`. `attrs` of the table has how many labels are likely to be wrong (`number`, `low`,
        `high`) and the share of these rows that should be (`precision`); it is empty if there is no sign of any.
        `suggested` is the class that was predicted instead in most of the wrong presentations.
        """
        from learnscope.findings.examples.noise_estimate import suspicious

        return suspicious(self.examples())

    def hard_examples(self, n: int = 100) -> pd.DataFrame:
        """The `n` examples with the lowest mean probability of their own label, from an `ExampleLedger`."""
        return self.examples().sort_values("confidence", kind="stable").head(n).reset_index(drop=True)

    def forgotten_examples(self) -> pd.DataFrame:
        """Examples that were right at one presentation and wrong at the next, the most often forgotten first."""
        from learnscope.findings.examples.notable import most_forgotten

        return most_forgotten(self.examples()).reset_index(drop=True)

    def show_examples(
        self, data: Any, *, field: str | int | None = None, tokenizer: Any = None, shape: Sequence[int] | None = None
    ) -> dict[int, Look]:
        """Keep thumbnails or texts of the examples that the report lists, and return them by id.

        What `ls.ExampleLedger(show=data)` does when a run closes, afterwards; the arguments are those of
        `learnscope.ShowExamples`. An example that cannot be shown has a `reason`. Random generators stay as they are.
        """
        from learnscope.findings.examples.notable import show_notable
        from learnscope.ledger.show import ShowExamples

        show = (
            data
            if isinstance(data, ShowExamples)
            else ShowExamples(data, field=field, tokenizer=tokenizer, shape=shape)
        )
        with _held_generators():
            looks = show_notable(self.backend, show)
        if looks is None:
            self.examples()  # says so if no examples were followed
        return looks or {}

    def ledger(self) -> Ledger:
        """The ledger of examples, as an `ExampleLedger` last stored it."""
        from learnscope.ledger.ledger import ledger_of
        from learnscope.ledger.stored import NONE_FOLLOWED

        ledger = ledger_of(self.backend)
        if ledger is None:
            raise KeyError(NONE_FOLLOWED)
        return ledger

    def rows_of_step(self, step: int) -> list[int | str]:
        """Ids of the examples of a step at which something happened: a loss or gradient that is not finite, a spike of
        the loss, a step that was lost. Empty for other steps, and where the loop gave no ids (`w.examples`, `w.batch`).
        """
        from learnscope.reading.lost import rows_behind

        return rows_behind(self, step)

    def findings(
        self, cuts: Cuts | None = None, *, baseline: Run | None = None, acknowledged: str | Path | None = None
    ) -> Findings:
        """What the records show: the most severe first, causes before symptoms, and symptoms inside their causes.

        With a `baseline`, another run of the same project, each says whether it is `new` or `worse`, and those that are
        `gone` come last. Findings that the project's `.learnscope/acknowledged.toml`, or the file `acknowledged`,
        accepts carry the reason and come last too.
        """
        return findings_in(self, cuts, baseline=baseline, acknowledged=acknowledged)

    def checks(self, cuts: Cuts | None = None) -> list[Check]:
        """Every check with its state: passed, failed, not measured (and how to change that), or not applicable."""
        from learnscope.findings.checks import checks_of

        return checks_of(self, cuts)

    def report(
        self,
        folder: str | Path | None = None,
        *,
        findings: Sequence[Finding] | None = None,
        format: Format = "markdown",
    ) -> Path:
        """Write report.md with its figures, by default into the run folder, which then also keeps findings.json.

        With `format="html"` it is one file, report.html, which needs no network; with `"png"` the figures alone.
        Pass `findings` if they are known already. With another folder, nothing is written into the run's own.
        """
        return self.report_with_findings(folder, findings=findings, format=format)[0]

    def page(self, folder: str | Path | None = None, *, findings: Sequence[Finding] | None = None) -> Path:
        """Write report.html, the report as one file: `run.report(format="html")`."""
        return self.report(folder, findings=findings, format="html")

    def report_with_findings(
        self, folder: str | Path | None = None, *, findings: Sequence[Finding] | None = None,
        records: RunReader | None = None, format: Format = "markdown",
    ) -> tuple[Path, list[Finding]]:  # fmt: skip
        """As `report`, and the findings that it states; the records are read once for both, or are those given."""
        from learnscope.reading.gather import one_pass

        if format not in get_args(Format):
            raise ValueError(f"format={format!r}: there are {', '.join(get_args(Format))}")
        target = folder if folder is not None else self.path and self.path / "report"
        if target is None:
            raise ValueError("this run is in memory: say where the report goes, run.report('folder')")
        records = one_pass(self if records is None else records)
        stated = findings_in(records) if findings is None else list(findings)
        if folder is None and self.path is not None:
            write_json(self.path / "findings.json", [finding.to_json() for finding in stated])
        name = self.path.resolve().name if self.path else "run"
        return _written(records, stated, Path(target), name, format), stated

    def export_patch(self, old: Any, new: Any, path: str | Path | None = None) -> PatchInfo:
        """Write a patch that turns the checkpoint `old` into `new`; see `learnscope.export_patch`. Needs torch.

        Each may also be a step at which the run saved its weights (`w.save_state()`): its floating-point parameters.
        By default the patch goes to `patches/<old>-<new>.safetensors` in the run folder.
        """
        from learnscope.model.updates.patch import export_patch
        from learnscope.model.weights.saved_steps import weights_at

        def weights(checkpoint: Any) -> Any:
            if not isinstance(checkpoint, int):
                return checkpoint
            if self.path is None:
                raise ValueError(f"this run is in memory and keeps no weights of step {checkpoint}: pass a checkpoint")
            return weights_at(self.path, checkpoint)

        return export_patch(weights(old), weights(new), self._patch_path(old, new) if path is None else path)

    def _patch_path(self, old: Any, new: Any) -> Path:
        named = [checkpoint for checkpoint in (old, new) if isinstance(checkpoint, int | str | Path)]
        names = [str(checkpoint) if isinstance(checkpoint, int) else Path(checkpoint).stem for checkpoint in named]
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
        from learnscope.report.shown import run_line

        return run_line(self, findings_in)

    def _repr_html_(self) -> str:
        from learnscope.report.shown import run_card

        return run_card(self, findings_in)


def _held_generators() -> AbstractContextManager[None]:
    """Accelerators have generators too, but torch is not imported for their sake."""
    if "torch" in sys.modules:
        from learnscope.model.guard import preserve_rng

        return preserve_rng()
    from learnscope.generators import unmoved_generators

    return unmoved_generators()


def _written(records: RunReader, findings: list[Finding], target: Path, name: str, format: Format) -> Path:
    if format == "html":
        from learnscope.report.page.writing import write_run

        return write_run(records, findings, target, name=name)
    from learnscope.report.markdown import write_figures, write_report

    if format == "png":
        write_figures(records, target)
        return target
    return write_report(records, findings, target, name=name)


def findings_in(
    records: RunReader, cuts: Cuts | None = None, *, baseline: RunReader | None = None,
    acknowledged: str | Path | None = None,
) -> Findings:  # fmt: skip
    """As `Run.findings`, of records that have been read already."""
    from learnscope.findings import find
    from learnscope.findings.acknowledged import marked, read_acknowledged
    from learnscope.findings.baseline import held_against

    found = find(records, cuts)
    if baseline is not None:
        found = held_against(found, find(baseline, cuts))
    return Findings(marked(found, read_acknowledged(acknowledged)))


def open_run(path: str | Path) -> Run:
    """Open a run folder for reading, also while it is being written. Does not need torch."""
    return Run(FolderBackend.existing(Path(path)))
