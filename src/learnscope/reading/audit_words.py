"""Numbers of an audit in words: bytes, seconds, intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from learnscope.reading.audit_numbers import Number
from learnscope.reading.audit_parts import Level
from learnscope.reading.words import count, num, percent
from learnscope.record import Evidence

DISTURBED = {
    "weight_noise": ("noise on the weights", "σ"), "quantisation_noise": ("rounding noise on the weights", "bits"),
    "token_dropout": ("dropped tokens", "share"), "token_substitution": ("replaced tokens", "share"),
    "input_dropout": ("dropped inputs", "share"), "input_noise": ("noise on the inputs", "σ"),
}  # fmt: skip
"""The name of each kind of noise, and the unit of its level."""


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


def told(number: Number, *, sign: bool = False) -> str:
    """A number with its interval, or the reason why there is none.

    >>> told(Number(0.5, 0.4, 0.6)), told(Number(None, why="3 passes are too few"))
    ('0.5 (95 % interval 0.4 to 0.6)', 'n/a (3 passes are too few)')
    """
    write = signed if sign else num
    if number.value is None:
        return f"n/a ({number.why or 'not measured'})"
    ends = "" if number.interval is None else " (95 % interval {} to {})".format(*map(write, number.interval))
    return f"{write(number.value)}{ends}"


def on(examples: int | None) -> str:
    """
    >>> on(64), on(None)
    (' on 64 examples', '')
    """
    return "" if examples is None else f" on {count(examples, 'example')}"


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


def by_strength(name: str, levels: Sequence[Level]) -> list[Level]:
    """From the weakest to the strongest: fewer bits are more noise."""
    return sorted(levels, key=lambda level: level.level, reverse=name == "quantisation_noise")


def at_level(name: str, level: float) -> str:
    """
    >>> at_level("weight_noise", 0.05), at_level("quantisation_noise", 4), at_level("token_dropout", 0.1)
    ('σ = 0.05', '4 bits', '10 %')
    """
    unit = DISTURBED.get(name, (name, "level"))[1]
    return {"bits": f"{level:g} bits", "share": percent(level)}.get(unit, f"{unit} = {num(level)}")
