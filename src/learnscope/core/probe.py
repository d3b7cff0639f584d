"""Probes: they measure a model at a moment and return numbers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, dataclass_transform

from learnscope.core.option_types import check_types
from learnscope.options import explain_options, is_whole
from learnscope.quantities import Quantities, declared
from learnscope.quantities.base import names_table
from learnscope.record import Measurement, ProbeWarning, Row, Table, plain_json

if TYPE_CHECKING:
    from learnscope.core.moment import Moment

__all__ = [
    "At", "Measured", "Probe", "ProbeWarning", "Schedule", "describe", "is_due", "labels_of", "prepares", "probe",
]  # fmt: skip

At = Literal["before_step", "after_step", "epoch", "once", "end"]
MOMENTS: tuple[At, ...] = ("before_step", "after_step", "epoch", "once", "end")
NEEDS = (
    "grads", "previous", "holdout", "examples", "features", "train_data", "test_data", "optimizer", "batch",
    "logged", "calls", "loss_calls", "forwards",
)  # fmt: skip
Schedule = int | Callable[[int], bool]
Measured = Measurement | Table | Row | Mapping[str, Any] | Iterable[Table | Row] | None


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measures a model at a moment. `measure` is the only required method:

    >>> class WeightNorm(Probe):
    ...     every: int = 10
    ...     def measure(self, moment):
    ...         return {"norm": sum(p.square().sum() for p in moment.model.parameters()) ** 0.5}
    >>> WeightNorm(every=5).every
    5

    Annotated class attributes become keyword options and are written to the run's manifest.
    A probe keeps no state of its own; `moment.state` is a small dictionary that is saved with the session.
    """

    every: Schedule = 1
    """How often: every so many steps (or epochs), or a function from the step to whether it is due."""
    at: At = "after_step"
    """When: `before_step` (gradients are there), `after_step`, `epoch`, `once` when the session opens, or `end` when it
    is closed after a loop that was not cut short."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """What it requires; if the source cannot provide it, the session refuses to open."""
    uses: ClassVar[frozenset[str]] = frozenset()
    """What it uses if the source has it, such as `micro_batches`."""
    reads_only: ClassVar[bool] = False
    """True if `measure` neither runs the model nor draws random numbers, and so needs no guard."""
    quantities: ClassVar[type[Quantities] | None] = None
    """The names that it records, with their meanings; for a probe of the package, the declared class of its name.
    A probe without them is drawn by the kinds of its rows."""
    cost: ClassVar[str] = ""
    """What one firing takes, in a few words: "one pass over the gradients"."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # people write `every = 5` without an annotation: it is the option's default all the same
        for option in ("every", "at"):
            if option in cls.__dict__ and option not in inspect.get_annotations(cls):
                cls.__annotations__ = {**inspect.get_annotations(cls), option: Any}
        dataclass(frozen=True, kw_only=True)(cls)
        packaged = cls.__module__.startswith("learnscope.")  # annotations of others may mean anything
        made = _with_types(cls.__init__) if packaged else cls.__init__
        cls.__init__ = explain_options(made, cls.__name__)  # type: ignore[method-assign]
        if cls.__module__.startswith("learnscope.probes.") and cls.__name__ in declared():
            cls.quantities = declared()[cls.__name__]
        if "quantities" in cls.__dict__ and cls.quantities is not None:
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{names_table(cls.quantities)}\n"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if not callable(self.every) and not is_whole(self.every, 1):
            kinds = "a whole number from 1, or a function from step to bool"
            raise ValueError(f"{owner}(every={self.every!r}): every is {kinds}")
        if self.at not in MOMENTS:
            raise ValueError(f"{owner}(at={self.at!r}): at is one of {', '.join(MOMENTS)}")

    def measure(self, moment: Moment) -> Measured:
        """The numbers at this moment: `{name: number}`, rows, tables, or a `Measurement`; None for nothing."""
        raise TypeError(f"{type(self).__name__} must define measure(self, moment); step {moment.step} was not measured")

    def open(self, moment: Moment) -> None:
        """Called when a session opens, for what is known only then. Optional.

        What it raises refuses the session before anything is written. A resumed session has its state back.
        """

    def prepare(self, moment: Moment) -> None:
        """Called before the step after which `measure` is due, for what is gone by then. Optional.

        A probe `at="epoch"` that needs what the loop hands over (`batch`, `examples`, `logged`) is called for every
        step for which that has been handed over, and measures at the end of the epoch and of the session.
        """

    def take_at_once(self, state: dict[str, Any], epoch: int, *batch: Any) -> bool:  # noqa: ARG002  (the contract's)
        """Take a batch of `examples` (ids, logits, targets, inputs) before its step is complete, and copy it.

        Only for what is like the batches before and needs no more than being copied, since nothing is caught here:
        False leaves the batch as it is, and `prepare` is called with it. Optional.
        """
        return False

    def may_measure_later(self, moment: Moment) -> bool:  # noqa: ARG002  (the contract's)
        """Whether `measure` may come later, with others, as it reads only finite numbers that the moment holds."""
        return False

    def reads_spread(self) -> bool:
        """Whether it reads the spread of the gradients' entries, which a clip would round: it is then taken before."""
        return False

    def settle(self, state: dict[str, Any]) -> None:
        """Called before the session's state is saved: entries of it that begin with `_` are not. Optional."""


def _with_types(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that refuses values of a wrong type, where the probe itself has not said something better."""

    @functools.wraps(init)
    def checked(self: Probe, *args: Any, **options: Any) -> None:
        try:
            init(self, *args, **options)
        except Exception as error:  # a comparison of a wrong type raises anything
            names = [field.name for field in fields(self)]
            is_named = isinstance(error, ValueError) and any(name.removesuffix("s") in str(error) for name in names)
            if not is_named and all(name in self.__dict__ for name in names):  # raised by its checks, not by the call
                check_types(self)
            raise
        check_types(self)

    return checked


def is_due(every: Schedule, step: int) -> bool:
    """Whether a schedule is due at this step. Steps count from 1; an interval is due at its multiples."""
    return bool(every(step)) if callable(every) else step % every == 0


def prepares(probe: Probe) -> bool:
    return type(probe).prepare is not Probe.prepare


def describe(probe: Probe) -> dict[str, Any]:
    """A probe's name and fields, for the manifest."""
    options = {field.name: _plain(getattr(probe, field.name)) for field in fields(probe)}
    about = {"probe": type(probe).__name__, **options, "needs": sorted(probe.needs)}
    # the names that the package's own probes record are known wherever a run is read
    if probe.quantities is not None and not type(probe).__module__.startswith("learnscope."):
        about["names"] = [quantity.to_json() for quantity in probe.quantities.all()]
    return about


def labels_of(probe: Probe) -> list[str]:
    """The labels that its quantities declare: columns of the run's table, whether or not it has recorded any."""
    quantities = probe.quantities.all() if probe.quantities is not None else []
    return list(dict.fromkeys(label for quantity in quantities for label in quantity.labels))


def _plain(value: Any) -> Any:
    return plain_json(value, nonfinite=float, other=_named)


def _named(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return _plain(list(value))
    return getattr(value, "__qualname__", None) or repr(value)


def probe(
    *, every: Schedule = 1, at: At = "after_step", needs: Iterable[str] = ()
) -> Callable[[Callable[[Moment], Measured]], Probe]:
    """Turn a function of a moment into a probe.

    >>> @probe(every=10)
    ... def largest_weight(moment):
    ...     return {"largest": max(p.abs().max() for p in moment.model.parameters())}
    >>> largest_weight.every
    10
    """
    wanted = frozenset(needs)

    def wrap(function: Callable[[Moment], Measured]) -> Probe:
        body = {
            "measure": lambda _self, moment: function(moment),
            "needs": wanted,
            "__doc__": function.__doc__,
            "__module__": function.__module__,
        }
        made: type[Probe] = type(function.__name__, (Probe,), body)
        return made(every=every, at=at)

    return wrap
