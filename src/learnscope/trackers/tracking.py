"""What both trackers do: look at a model every so many steps, remember the looks, and keep them in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.core.moment import NotAvailable, standing_gradients
from learnscope.core.probe import Probe
from learnscope.model.adapters.inventory import Adapters, find_adapters, method_of
from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.model.adapters.start import AdapterError
from learnscope.names import resolve
from learnscope.options import whole_number
from learnscope.reading.gather import class_of
from learnscope.record import Record
from learnscope.run import Run, open_run
from learnscope.session.looking import Looking, Remembered
from learnscope.session.opening import check_model
from learnscope.session.optimizers import unwrap_optimizer
from learnscope.store.backend import RunError
from learnscope.store.files import write_json
from learnscope.trackers.history import Look, Naming, looks_of, ordered
from learnscope.trackers.tracker_file import Loaded, TrackerFileError, read_tracker, write_tracker

States = Mapping[str, Mapping[str, Any]]


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


@dataclass(frozen=True, slots=True)
class Kind:
    """What tells one tracker from the other."""

    name: str
    file: str
    namings: Mapping[str, Naming]
    """By probe, which of its columns are kept, and under which names."""
    probes: Callable[[Options, nn.Module | None], list[Probe]]
    """What to measure with these options, of this model or of one that is not known yet."""


class Live:
    """The probes of a tracker on a model; what they measure is handed back as a look."""

    def __init__(
        self, kind: Kind, options: Options, model: nn.Module, optimizer: Any = None, *,
        states: States | None = None, last_step: int = 0,
    ) -> None:  # fmt: skip
        self.model, self._namings = model, kind.namings
        self._probes = {type(probe).__name__: probe for probe in kind.probes(options, model)}
        self._looking = Looking(self._probes, source="tracker")
        if states is not None:
            known = {name: dict(states.get(name, {})) for name in self._probes}
            self._looking.remember(Remembered({}, [], {}, known, last_step))
        # this lets the probes refuse the model, and keep what its adapters begin with
        subject = self._looking.subject(model)
        subject.optimizers = [] if optimizer is None else [unwrap_optimizer(optimizer)]

    def look(self, step: int) -> Look:
        """Let every probe measure; gradients are those that stand."""
        subject = self._looking.subject(self.model)
        records = self._looking.look(
            self.model, step=step, epoch=None, phase="tracked", take_gradients=lambda: standing_gradients(subject)
        )
        return looks_of(records.values(), self._looking.run.arrays_of, self._namings)[step]

    def states(self) -> dict[str, dict[str, Any]]:
        """The probes' memories, without what they keep only for the moment."""
        for name, probe in self._probes.items():
            probe.settle(self._looking.state(name))
        return {
            name: {key: kept for key, kept in self._looking.state(name).items() if not key.startswith("_")}
            for name in self._probes
        }


def adapters_in(model: nn.Module) -> Adapters:
    """The adapters of a model, of which there may be none."""
    try:
        return find_adapters(model)
    except AdapterError:
        return Adapters()


@dataclass(slots=True)
class Tracking:
    """The looks of a tracker, and where the next ones come from, if it has a model."""

    kind: Kind
    options: Options
    save_dir: Path | None = None
    live: Live | None = None
    looks: dict[int, Look] = field(default_factory=dict)
    states: States | None = None
    """Of the tracker that a file was saved from, while this one has no model."""

    @classmethod
    def load(cls, kind: Kind, path: str | Path, model: nn.Module | None, optimizer: Any) -> Tracking:
        found = read_tracker(path, kind.name)
        try:
            options = Options(**found.options)
        except (TypeError, ValueError) as error:
            raise TrackerFileError(f"{path} is damaged ({error}): save the tracker anew") from error
        tracking = cls(kind, options, Path(path).parent, looks=found.looks, states=found.states)
        if model is not None:
            check_model(model)
            _check_modules(Path(path), found, model)
            last = max(found.looks, default=0)
            tracking.live = Live(kind, options, model, optimizer, states=found.states or {}, last_step=last)
        return tracking

    @classmethod
    def from_run(cls, kind: Kind, run: Run | str | Path) -> Tracking:
        run = run if isinstance(run, Run) else open_run(run)
        described = [told for told in run.manifest.get("probes", {}).values() if told["probe"] in kind.namings]
        if not described:
            raise RunError(
                f"{run.path or 'this run'} has no records for a {kind.name}: watch it with "
                f"{' or '.join(f'ls.{probe}()' for probe in kind.namings)}"
            )
        every = described[0].get("every")
        options = Options(log_frequency=every if isinstance(every, int) else None)
        records = _of_kind(run.records(), kind)
        return cls(kind, options, looks=looks_of(records, run.arrays_of, kind.namings))

    def due(self, step: int) -> int | None:
        """The step as a number, if it is to be logged."""
        number = whole_number("step", step)
        if self.live is None:
            name = self.kind.name
            raise NotAvailable(
                f"this {name} was made for analysis and has no model to look at: {name}(model), or "
                f"{name}.load(path, model) to go on from a file"
            )
        return None if number % (self.options.log_frequency or 1) else number

    def log(self, step: int) -> None:
        """Look at the model, and remember; of two looks at one step the later one."""
        assert self.live is not None, "due has refused"
        self.looks = ordered([*self.looks.values(), self.live.look(step)])

    def save(self, path: str | Path | None, summary: Mapping[str, Any] | None) -> Path:
        """Write the file and, if there is one, the summary beside it."""
        if path is None and self.save_dir is None:
            raise ValueError("there is no place to save to: save(path), or make the tracker with save_dir=")
        target = Path(path) if path is not None else Path(self.save_dir or "") / self.kind.file
        if target.is_dir():
            raise IsADirectoryError(f"{target} is a folder: name the file in it, such as {target / self.kind.file}")
        states = self.states if self.live is None else self.live.states()
        write_tracker(target, self.kind.name, asdict(self.options), self.looks, states)
        if summary is not None:
            write_json(target.with_name(f"{target.stem}_summary.json"), summary)
        return target


def _of_kind(records: Iterable[Record], kind: Kind) -> Iterator[Record]:
    for record in records:
        probe = class_of(record.probe)  # a second probe of a class has a number behind its name
        if probe in kind.namings:
            yield replace(record, probe=probe)


def _check_modules(path: Path, found: Loaded, model: nn.Module) -> None:
    """Refuse a model that is not the one of the file."""
    last = found.looks[max(found.looks)] if found.looks else Look(0, 0.0)
    adapters = adapters_in(model)
    adapted = {(one.name, one.scope): method_of(one.parts.family) for one in adapters.found}
    unknown = {scope for scopes in adapters.unknown.values() for scope in scopes}  # their gradients are tracked as well
    tensors = [resolve(name).clean for name, _ in model.named_parameters()]
    own = {*tensors, *(name.rpartition(".")[0] for name in tensors)}
    for adapter, block in last.blocks.items():
        for module, family in zip(block.modules, block.families, strict=True):
            same = adapted.get((adapter, module)) == method_of(family) or module in unknown
            if not (module in own if family == NO_FAMILY else same):
                whose = "" if family == NO_FAMILY else f" with an adapter {adapter!r} ({family})"
                raise TrackerFileError(
                    f"{path} is of a model that has {module}{whose}, which this {type(model).__name__} lacks: load it "
                    "with the model it was saved with, or without one for analysis"
                )
