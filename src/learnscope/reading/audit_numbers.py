"""Records of an audit as numbers, each with its interval or the reason why it is missing, and these in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from learnscope.quantities import Quantities, Quantity
from learnscope.reading.words import count, num, percent
from learnscope.record import Evidence, Record

DISTURBED = {
    "weight_noise": ("noise on the weights", "σ"), "quantisation_noise": ("rounding noise on the weights", "bits"),
    "token_dropout": ("dropped tokens", "share"), "token_substitution": ("replaced tokens", "share"),
    "typos": ("typing errors", "share"), "letter_swaps": ("exchanged letters", "share"),
    "casing": ("letters in the other case", "share"), "whitespace": ("changed spaces", "share"),
    "word_order": ("exchanged words", "share"), "distractor": ("words of another text before the prompt", "share"),
    "token_swaps": ("exchanged tokens", "share"), "token_distractor": ("tokens of another text before it", "share"),
    "input_dropout": ("dropped inputs", "share"), "input_noise": ("noise on the inputs", "σ"),
}  # fmt: skip
"""The name of each kind of noise, and the unit of its level."""
OWN_SAMPLES = "the model's own samples"
"""The note `data` of what was measured on sequences that the model itself made up."""
_E = TypeVar("_E", bound="Entry")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its 95 % interval, if it has one.

    `reason` says why a value is None, `no_interval` why a value that should have an interval has none.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    no_interval: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def integer(self) -> int | None:
        return None if self.value is None else int(self.value)


NONE = Number(None, reason="not recorded")


class NumberOf:
    """An attribute that reads the number of a quantity."""

    def __init__(self, quantity: Quantity) -> None:
        self.name = quantity.name

    def __get__(self, numbers: Entry | Part, _: type | None = None) -> Number:
        return numbers[self.name]


class CountOf(NumberOf):
    """An attribute that reads a count."""

    def __get__(self, numbers: Entry | Part, _: type | None = None) -> int | None:  # type: ignore[override]
        return numbers[self.name].integer


class Label(Generic[_T]):
    """An attribute that reads a label, converted to the type of its default."""

    def __init__(self, name: str, default: _T) -> None:
        self.name, self.default = name, default

    def __get__(self, entry: Entry, _: type | None = None) -> _T:
        value = entry.labels.get(self.name)
        return self.default if value is None else type(self.default)(value)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Entry:
    """The numbers of one scope under one set of labels."""

    kind: str = ""
    scope: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, tuple[float | None, str | None]] = field(default_factory=dict)
    """Value and status by name."""

    def __getitem__(self, name: str) -> Number:
        if name not in self.cells:
            return NONE
        value = self.cells[name][0]
        if value is None:
            return Number(None, reason=self.reasons[name])
        (low, why), (high, _) = (self.cells.get(f"{name}_{end}", (None, None)) for end in ("low", "high"))
        missing = f"{name}_low" in self.cells and (low is None or high is None)
        return Number(value, low, high, no_interval=(why or "not measured") if missing else None)

    @property
    def name(self) -> str:
        return self.scope

    @property
    def values(self) -> dict[str, float | None]:
        return {name: value for name, (value, _) in self.cells.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """Why values are None, by name."""
        return {name: status or "not measured" for name, (value, status) in self.cells.items() if value is None}


@dataclass(frozen=True)
class Part:
    """What one probe recorded."""

    probe: str
    notes: Mapping[str, Any]
    entries: Sequence[Entry]
    quantities: ClassVar[type[Quantities]]

    def of(self, kind: str, view: type[_E]) -> list[_E]:
        """The entries of a kind, as instances of `view`."""
        return [view(kind, entry.scope, entry.labels, entry.cells) for entry in self.entries if entry.kind == kind]

    def __getitem__(self, name: str) -> Number:
        """A number of the model as a whole."""
        return next((entry[name] for entry in self.entries if entry.kind == "model" and name in entry.cells), NONE)

    @property
    def examples(self) -> int | None:
        return self.notes.get("examples")

    @property
    def given(self) -> int | None:
        """How many examples there were to choose from, if that is known."""
        return self.notes.get("examples_given")

    @property
    def own_samples(self) -> bool:
        """Whether it was measured on sequences that the model itself made up."""
        return self.notes.get("data") == OWN_SAMPLES

    @property
    def on(self) -> str:
        """What the numbers rest on, in words that follow them."""
        return on_examples(self.examples, self.given, self.notes.get("data"))


def entries_of(records: Iterable[Record]) -> list[Entry]:
    """The numbers of all these records; a later record replaces what an earlier one has too."""
    cells: dict[Any, dict[str, tuple[float | None, str | None]]] = {}
    for record in records:
        for row in record.rows():
            key = (row.kind, row.scope, tuple(sorted(row.labels.items())))
            cells.setdefault(key, {})[row.name] = (row.value, row.status)
    return [Entry(kind, scope, dict(labels), each) for (kind, scope, labels), each in cells.items()]


def size(n: float) -> str:
    """
    >>> size(123), size(1.5e6), size(100e6), size(2.25e9)
    ('123 bytes', '1.5 MB', '100 MB', '2.25 GB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(n) >= scale:
            return f"{float(f'{n / scale:.3g}'):,g} {unit}"
    return f"{n:,.0f} bytes"


def duration(seconds: float) -> str:
    """
    >>> duration(0.00123), duration(2.5), duration(4e-6)
    ('1.23 ms', '2.5 s', '4 µs')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{float(f'{seconds / scale:.3g}'):,g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def signed(value: float) -> str:
    """
    >>> signed(0.01), signed(-0.01), signed(0)
    ('+0.01', '−0.01', '0')
    """
    return ("+" if value > 0 else "−" if value < 0 else "") + num(abs(value))


def interval_text(number: Number, *, sign: bool = False) -> str:
    """A number with its interval, or the reason why there is none.

    >>> interval_text(Number(0.5, 0.4, 0.6)), interval_text(Number(None, reason="3 passes are too few"))
    ('0.5 (95 % interval 0.4 to 0.6)', 'n/a (3 passes are too few)')
    >>> interval_text(Number(0.5, no_interval="3 examples are too few"))
    '0.5 (no interval: 3 examples are too few)'
    """
    write = signed if sign else num
    if number.value is None:
        return f"n/a ({number.reason or 'not measured'})"
    ends = f"95 % interval {ends_text(number, write)}" if number.interval is not None else ends_text(number, write)
    return f"{write(number.value)} ({ends})" if ends else write(number.value)


def ends_text(number: Number, write: Callable[[float], str] = num) -> str:
    """The ends of the interval, or why there is none; nothing for a number that needs none.

    >>> ends_text(Number(0.5, 0.4, 0.6)), ends_text(Number(0.5, no_interval="too few examples")), ends_text(Number(2.0))
    ('0.4 to 0.6', 'no interval: too few examples', '')
    """
    if number.interval is not None:
        return "{} to {}".format(*map(write, number.interval))
    return "" if number.value is None or number.no_interval is None else f"no interval: {number.no_interval}"


def on_examples(examples: int | None, given: int | None = None, data: str | None = None) -> str:
    """What a number rests on: how many examples, of how many that were given, and of what, if that is not data.

    >>> on_examples(64), on_examples(None), on_examples(8, 96), on_examples(1, 1, OWN_SAMPLES)
    (' on 64 examples', '', ' on 8 of 96 examples', " on 1 example of the model's own samples")
    """
    if examples is None:
        return ""
    counted = count(examples, "example") if given in (None, examples) else f"{examples:,} of {count(given, 'example')}"
    return f" on {counted}" + (f" of {data}" if data else "")


def widths(bits: Mapping[str, int]) -> str:
    """How many units have how many bits, most bits first.

    >>> widths({"a": 4, "b": 8, "c": 4})
    '8 bits for 1 unit, 4 bits for 2 units'
    """
    units = sorted(Counter(bits.values()).items(), reverse=True)
    return ", ".join(f"{width} bits for {count(n, 'unit')}" for width, n in units)


def evidence(probe: str, name: str, n: int | None, number: Number) -> Evidence:
    """The evidence of a finding; n is 1 where the probe does not record it."""
    return Evidence(probe=probe, name=name, n=1 if n is None else n, value=number.value, interval=number.interval)


def at_level(name: str, level: float) -> str:
    """
    >>> at_level("weight_noise", 0.05), at_level("quantisation_noise", 4), at_level("token_dropout", 0.1)
    ('σ = 0.05', '4 bits', '10 %')
    """
    unit = DISTURBED.get(name, (name, "level"))[1]
    return {"bits": f"{level:g} bits", "share": percent(level)}.get(unit, f"{unit} = {num(level)}")
