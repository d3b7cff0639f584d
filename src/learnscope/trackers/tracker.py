"""What both trackers do: measure a model every so many steps, keep the numbers, and write them to a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from matplotlib.figure import Figure
from torch import nn

from learnscope.core.gradients import Gradients, current_gradients
from learnscope.core.moment import NotAvailable
from learnscope.core.probe import Probe
from learnscope.core.subject import Subject
from learnscope.model.adapters.parameters import OUTSIDE_ADAPTERS
from learnscope.model.structure import Structure
from learnscope.options import whole_number
from learnscope.reading.gather import class_of
from learnscope.reading.words import count
from learnscope.record import Record
from learnscope.run import Run, open_run
from learnscope.session.manual import ManualSession, States, UnstoredBackend
from learnscope.session.opening import check_model
from learnscope.session.steps.optimizers import unwrap_optimizer
from learnscope.store.backend import RunError
from learnscope.store.files import write_json
from learnscope.trackers.config import check_options
from learnscope.trackers.fitting import adapters_in, check_family, check_modules
from learnscope.trackers.history import History, MetricName
from learnscope.trackers.tracker_file import TrackerFileError, read_tracker, write_tracker
from learnscope.trackers.unread import Unread, measure_now

NOTHING = "nothing has been measured: no step has been logged yet"
NO_NUMBER = "nothing could be measured at the steps that were logged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a tracker was made with; saved in its file."""

    log_frequency: int | None = 100
    """None for a run that was not measured at a fixed interval."""
    track_adapter_only: bool = True
    compute_full_svd: bool = True
    max_layers_to_track: int | None = None

    def __post_init__(self) -> None:
        check_options(self)


class Tracker(ABC):
    """Measures a model every so many steps; a subclass says what, and how to query it."""

    _name: ClassVar[str]
    file: ClassVar[str]
    """The default name of its file."""
    folder: ClassVar[str]
    """Where `write_logs` puts its files."""
    _metric_names: ClassVar[Mapping[str, MetricName]]
    """By probe, which of its columns are tracked, and under which names."""
    _options: Options
    _save_dir: Path | None
    _kept: History
    """What was measured, without what nobody has asked for yet."""
    _unread: list[Unread]
    _structure: Structure | None
    """Of the model when its parameters were last looked up."""
    _states: States | None
    """The probes' states from a file, while this tracker has no model."""
    _session: ManualSession | None
    _verbose: bool = False
    """Whether to print what is tracked, and each step that is logged."""

    @staticmethod
    @abstractmethod
    def _probes(options: Options, model: nn.Module | None) -> list[Probe]:
        """What to measure with these options; the model may not be known yet."""

    @abstractmethod
    def get_summary_stats(self, *, adapter: str | None = None) -> dict[str, Any]:
        """How much was logged, and its numbers over all modules (or one adapter's) at the latest step."""

    @abstractmethod
    def default_figures(self, adapter: str | None) -> dict[str, Callable[..., Figure]]:
        """The figures of `write_logs` by file name; each takes `save_path`."""

    def log_step(self, step: int) -> bool:
        """Measure if `step` is a multiple of `log_frequency`; returns whether it did. A step can be logged again."""
        number = whole_number("step", step)
        if self._session is None:
            raise NotAvailable(
                f"this {self._name} was made for analysis and has no model to look at: {self._name}(model), or "
                f"{self._name}.load(path, model) to go on from a file"
            )
        if number % (self._options.log_frequency or 1):
            return False
        session, subject = self._session, self._looked_up(self._session)
        self._check_ready(subject)
        moment = session.moment("tracked", step=number, take_gradients=lambda: self._gradients(subject))
        self._unread.append(measure_now(session, moment))
        if len(session.bound) > 1:  # two probes may not measure the same adapter: said now, not when somebody reads
            self._read_all()
        if self._verbose:
            print(f"{self._name}: step {number} logged in {self._history.cost(number):.3f} s")
        return True

    def _looked_up(self, session: ManualSession) -> Subject:
        """The model with its parameters, walked again only if its modules or parameters are others."""
        if self._structure is None or not self._structure.holds():
            session.open(session.subject.model)
            self._structure = Structure(session.subject.model)
        return session.subject

    @property
    def _history(self) -> History:
        """With everything that was measured."""
        if self._unread:
            self._read_all()
        return self._kept

    def _read_all(self) -> None:
        unread, self._unread = self._unread, []
        for step in unread:
            self._kept.measured.pop(step.step, None)
            try:
                for record, arrays in step.records():
                    self._kept.take(record, arrays, self._metric_names[record.probe])
            except ValueError:  # half a step is not kept
                self._kept.measured.pop(step.step, None)
                raise

    def _gradients(self, subject: Subject) -> Gradients:
        """What the probes are given as the gradients of this moment."""
        return current_gradients(subject)

    def _check_ready(self, subject: Subject) -> None:  # noqa: B027  (optional: weights are always there)
        """Refuse a moment at which there is nothing to measure."""

    def save(self, path: str | Path | None = None, *, summary: bool = True) -> Path:
        """Write the history and its summary as JSON beside it.

        By default to `spectral_history.pt`, or `gradient_flow.pt`, in `save_dir`. `torch.load(path,
        weights_only=True)` reads it: plain names, numbers and tensors.
        """
        if path is None and self._save_dir is None:
            raise ValueError("there is no place to save to: save(path), or make the tracker with save_dir=")
        target = Path(path) if path is not None else Path(self._save_dir or "") / self.file
        if target.is_dir():
            raise IsADirectoryError(f"{target} is a folder: name the file in it, such as {target / self.file}")
        states = self._states if self._session is None else self._session.states()
        write_tracker(target, self._name, asdict(self._options), self._history, states)
        if summary:
            write_json(target.with_name(f"{target.stem}_summary.json"), self.get_summary_stats())
        return target

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None, *, optimizer: Any = None) -> Self:
        """The tracker that was saved: for analysis, or with its model to continue logging."""
        options, history, states = read_tracker(path, cls._name)
        tracker = cls.__new__(cls)
        try:
            tracker._set(Options(**options), Path(path).parent, history, states)
        except (TypeError, ValueError) as error:
            raise TrackerFileError(f"{path} is damaged ({error}): save the tracker anew") from error
        if model is not None:
            check_model(model)
            check_modules(Path(path), history, model)
            tracker._track(model, optimizer, states or {})
        return tracker

    @classmethod
    def from_run(cls, run: Run | str | Path) -> Self:
        """The same view of a run in which this tracker's probes recorded."""
        run = run if isinstance(run, Run) else open_run(run)
        described = [probe for probe in run.manifest.get("probes", {}).values() if probe["probe"] in cls._metric_names]
        if not described:
            raise RunError(
                f"{run.path or 'this run'} has no records for a {cls._name}: watch it with "
                f"{' or '.join(f'ls.{probe}()' for probe in cls._metric_names)}"
            )
        every = described[0].get("every")
        tracker = cls.__new__(cls)
        tracker._set(Options(log_frequency=every if isinstance(every, int) else None))
        tracker.take(run.records(), run)
        return tracker

    @property
    def steps(self) -> list[int]:
        return self._history.steps

    @property
    def modules(self) -> dict[str, list[str]]:
        """The tracked modules of every adapter; those outside adapters are under `none`."""
        return {adapter: list(families) for adapter, families in self._history.families.items()}

    def _start(
        self, model: nn.Module, optimizer: Any, save_dir: str | Path | None, peft_type: str | None, verbose: bool,
        **options: Any,
    ) -> None:  # fmt: skip
        """What both constructors do; `log_frequency` cannot be None for a tracker with a model."""
        options["log_frequency"] = whole_number("log_frequency", options["log_frequency"], 1)
        self._set(Options(**options), save_dir)
        check_family(model, peft_type)
        self._track(model, optimizer, {})
        self._verbose = verbose
        if verbose:
            counts = Counter(adapter.parts.family for adapter in adapters_in(model).items)
            adapted = ", ".join(f"{family} in {count(number, 'module')}" for family, number in counts.items())
            print(f"{self._name}: {adapted or 'no adapters'}, every {count(self._options.log_frequency or 1, 'step')}")

    def _set(
        self, options: Options, save_dir: str | Path | None = None, history: History | None = None,
        states: States | None = None,
    ) -> None:  # fmt: skip
        self._options, self._save_dir = options, None if save_dir is None else Path(save_dir)
        self._kept, self._states, self._session = history or History(), states, None
        self._unread, self._structure = [], None

    def _track(self, model: nn.Module, optimizer: Any, states: States) -> None:
        """Measure this model from now on. The probes may refuse it, and store its adapters' initial factors."""
        probes = {type(probe).__name__: probe for probe in self._probes(self._options, model)}
        session = ManualSession(probes, UnstoredBackend(), source="tracker")
        session.restore_states(states, max(self.steps, default=0))
        session.open(model).optimizers = [] if optimizer is None else [unwrap_optimizer(optimizer)]
        self._session = session

    def _summary(self, adapters: Sequence[str], metrics: Iterable[str]) -> dict[str, Any]:
        """How much was logged, and each metric over the modules at the latest step that measured anything."""
        history, steps = self._history, self.steps
        last = next((step for step in reversed(steps) if any(history.cells(step, a) for a in adapters)), None)
        present = {} if last is None else {adapter: history.present(last, adapter) for adapter in adapters}
        families = {adapter: dict(Counter(modules.values())) for adapter, modules in present.items() if modules}
        kinds = dict.fromkeys(family for counts in families.values() for family in counts if family != OUTSIDE_ADAPTERS)
        cost = sum(history.cost(step) for step in steps)
        return {
            "tracker": self._name,
            "peft_type": ", ".join(kinds) or None,
            "adapters": families,
            "total_steps_logged": len(steps),
            "step_range": [steps[0], steps[-1]] if steps else None,
            "num_layers": None if last is None else sum(sum(counts.values()) for counts in families.values()),
            "latest_step": last,
            "metrics": {metric: history.over_modules(last, adapters, metric) for metric in metrics},
            "cost_seconds": {"total": cost if steps else None, "per_step": cost / len(steps) if steps else None},
            "failed_steps": {str(step): error for step in steps if (error := history.failed(step)) is not None},
            "note": None if last is not None else NO_NUMBER if steps else NOTHING,
        }

    @classmethod
    def reads(cls, record: Record) -> bool:
        """Whether a record is of one of this tracker's probes."""
        return class_of(record.probe) in cls._metric_names

    def take(self, records: Iterable[Record], run: Run) -> None:
        """Add records of a run; those of other probes are left out."""
        for record in filter(self.reads, records):
            probe = class_of(record.probe)  # a second probe of a class has a number behind its name
            self._history.take(replace(record, probe=probe), run.arrays_of(record), self._metric_names[probe])
