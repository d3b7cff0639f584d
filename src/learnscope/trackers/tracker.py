"""What both trackers do: look at a model every so many steps, keep what they measured, and write it to a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from numpy.typing import NDArray
from torch import nn

from learnscope.core.gradients import standing_gradients
from learnscope.core.moment import NotAvailable
from learnscope.core.probe import Probe
from learnscope.model.adapters.inventory import Adapters, find_adapters, method_of
from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.model.adapters.start import AdapterError
from learnscope.names import resolve
from learnscope.options import whole_number
from learnscope.reading.gather import class_of
from learnscope.record import Record
from learnscope.run import Run, open_run
from learnscope.session.manual import ManualSession, NotKept, States
from learnscope.session.opening import check_model
from learnscope.session.steps import unwrap_optimizer
from learnscope.store.backend import MemoryBackend, RunError
from learnscope.store.files import write_json
from learnscope.trackers.history import History, Naming
from learnscope.trackers.tracker_file import TrackerFileError, read_tracker, write_tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a tracker was made with; kept in its file."""

    log_frequency: int | None = 100
    """None for a run whose schedule is no interval."""
    track_adapter_only: bool = True
    compute_full_svd: bool = True
    max_layers_to_track: int | None = None

    def __post_init__(self) -> None:
        for name in ("log_frequency", "max_layers_to_track"):
            given = getattr(self, name)
            if given is not None:  # NumPy's numbers too, which a file does not hold
                object.__setattr__(self, name, whole_number(name, given, 1))
        for name in ("track_adapter_only", "compute_full_svd"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: True or False")


class UntilRead(NotKept):
    """For records that are read at once; their arrays stay until then."""

    put_arrays = MemoryBackend.put_arrays

    def arrays(self, reference: str) -> dict[str, NDArray[Any]]:
        return self._arrays.pop(reference)


class Tracker(ABC):
    """Looks at a model every so many steps; a subclass says at what, and how to ask for it."""

    _name: ClassVar[str]
    file: ClassVar[str]
    """What its file is called unless said otherwise."""
    _namings: ClassVar[Mapping[str, Naming]]
    """By probe, which of its columns are kept, and under which names."""
    _options: Options
    _save_dir: Path | None
    _history: History
    _states: States | None
    """Of the tracker that a file was saved from, while this one has no model."""
    _session: ManualSession | None

    @staticmethod
    @abstractmethod
    def _probes(options: Options, model: nn.Module | None) -> list[Probe]:
        """What to measure with these options, of this model or of one that is not known yet."""

    @abstractmethod
    def get_summary_stats(self, *, adapter: str | None = None) -> dict[str, Any]:
        """How much was logged, and its numbers over all modules (or one adapter's) at the latest step."""

    def log_step(self, step: int) -> bool:
        """Measure, if `step` is a multiple of `log_frequency`; whether it did. A step logged again replaces itself."""
        number = whole_number("step", step)
        if self._session is None:
            raise NotAvailable(
                f"this {self._name} was made for analysis and has no model to look at: {self._name}(model), or "
                f"{self._name}.load(path, model) to go on from a file"
            )
        if number % (self._options.log_frequency or 1):
            return False
        subject = self._session.open(self._session.subject.model)
        self._check_ready(subject.model)
        moment = self._session.moment("tracked", step=number, take_gradients=lambda: standing_gradients(subject))
        records = self._session.measure(moment)
        self._history.forget(number)
        try:
            self.take(records.values(), self._session.run)
        except ValueError:  # half of a step is none
            self._history.forget(number)
            raise
        return True

    def _check_ready(self, model: nn.Module) -> None:  # noqa: B027  (optional: weights are always there)
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
        """The tracker that was saved: for analysis, or with its model to go on from there."""
        saved = read_tracker(path, cls._name)
        try:
            options = Options(**saved.options)
        except (TypeError, ValueError) as error:
            raise TrackerFileError(f"{path} is damaged ({error}): save the tracker anew") from error
        tracker = cls.__new__(cls)
        tracker._set(options, Path(path).parent, saved.history, saved.states)
        if model is not None:
            check_model(model)
            _check_modules(Path(path), saved.history, model)
            tracker._track(model, optimizer, saved.states or {})
        return tracker

    @classmethod
    def from_run(cls, run: Run | str | Path) -> Self:
        """The same view of a run in which this tracker's probes recorded."""
        run = run if isinstance(run, Run) else open_run(run)
        described = [told for told in run.manifest.get("probes", {}).values() if told["probe"] in cls._namings]
        if not described:
            raise RunError(
                f"{run.path or 'this run'} has no records for a {cls._name}: watch it with "
                f"{' or '.join(f'ls.{probe}()' for probe in cls._namings)}"
            )
        every = described[0].get("every")
        tracker = cls.__new__(cls)
        tracker._set(Options(log_frequency=every if isinstance(every, int) else None))
        tracker.take(run.records(), run)
        return tracker

    @property
    def steps(self) -> list[int]:
        """The logged steps."""
        return self._history.steps

    @property
    def modules(self) -> dict[str, list[str]]:
        """The tracked modules of every adapter; what belongs to none is under `none`."""
        return self._history.modules

    def _start(self, model: nn.Module, optimizer: Any, save_dir: str | Path | None, **options: Any) -> None:
        """What a constructor does; `log_frequency` cannot be None for a tracker with a model."""
        options["log_frequency"] = whole_number("log_frequency", options["log_frequency"], 1)
        self._set(Options(**options), save_dir)
        self._track(model, optimizer, {})

    def _set(
        self, options: Options, save_dir: str | Path | None = None, history: History | None = None,
        states: States | None = None,
    ) -> None:  # fmt: skip
        self._options, self._save_dir = options, None if save_dir is None else Path(save_dir)
        self._history, self._states, self._session = history or History(), states, None

    def _track(self, model: nn.Module, optimizer: Any, states: States) -> None:
        """Measure this model from now on. Its probes may refuse it, and keep what its adapters begin with."""
        probes = {type(probe).__name__: probe for probe in self._probes(self._options, model)}
        session = ManualSession(probes, UntilRead(), source="tracker")
        session.restore_states(states, max(self.steps, default=0))
        session.open(model).optimizers = [] if optimizer is None else [unwrap_optimizer(optimizer)]
        self._session = session

    @classmethod
    def reads(cls, record: Record) -> bool:
        """Whether a record is of one of this tracker's probes."""
        return class_of(record.probe) in cls._namings

    def take(self, records: Iterable[Record], run: Run) -> None:
        """Add what a run has recorded since; what is no record of this tracker's is left out."""
        for record in filter(self.reads, records):
            probe = class_of(record.probe)  # a second probe of a class has a number behind its name
            self._history.take(replace(record, probe=probe), run.arrays_of(record), self._namings[probe])


def adapters_in(model: nn.Module) -> Adapters:
    """The adapters of a model, of which there may be none."""
    try:
        return find_adapters(model)
    except AdapterError:
        return Adapters()


def _check_modules(path: Path, history: History, model: nn.Module) -> None:
    """Refuse a model that is not the one of the file."""
    adapters = adapters_in(model)
    adapted = {(one.name, one.scope): method_of(one.parts.family) for one in adapters.found}
    unknown = {scope for scopes in adapters.unknown.values() for scope in scopes}  # their gradients are tracked as well
    tensors = [resolve(name).clean for name, _ in model.named_parameters()]
    own = {*tensors, *(name.rpartition(".")[0] for name in tensors)}
    last = history.steps[-1:]
    for adapter, held in history.adapters.items():
        for module in (module for step in last for module in held.there(step)):
            family = held.families[held.rows[module]]
            same = adapted.get((adapter, module)) == method_of(family) or module in unknown
            if not (module in own if family == NO_FAMILY else same):
                whose = "" if family == NO_FAMILY else f" with an adapter {adapter!r} ({family})"
                raise TrackerFileError(
                    f"{path} is of a model that has {module}{whose}, which this {type(model).__name__} lacks: load it "
                    "with the model it was saved with, or without one for analysis"
                )
