"""A quantity: one name that a probe records, with its meaning, and how to read and draw it. Said once, here.

The quantities of a probe are a class of the probe's name; its attributes are the names:

>>> class WeightNorm(Quantities):
...     records = "how large the weights are"
...     norm = Quantity("√Σw²", kinds=("model", "layer"), scale="log")
>>> WeightNorm.norm.name, WeightNorm.norm.probe
('norm', 'WeightNorm')
>>> WeightNorm.norm.column([1.0]).name
'norm'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from learnscope.record import Column, Label, Row

Better = Literal["higher", "lower"]
Scale = Literal["linear", "log", "share"]
Drawn = Literal["by kind", "in a figure of its own", "not"]


@dataclass(frozen=True, kw_only=True)
class _Fields:
    kinds: tuple[str, ...] = ("model",)
    """What it is a number of: `model`, `layer`, `component`, `group` (of the optimizer), `named` (a group that the
    user named), `tensor`, `module`, or a kind of the probe's own such as `site` or `configuration`."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Conditions under which it is measured, with what each means: `{"threshold": "the t of |Δ| ≤ t"}`."""
    unit: str = ""
    source: str = ""
    """Where the formula comes from."""
    better: Better | None = None
    """Which direction is better, of what runs are judged by: a comparison of runs then tells the best value."""
    scale: Scale = "linear"
    drawn: Drawn = "by kind"
    """In a report: `by kind` gives layers a heatmap and the model a curve."""
    when: str = ""
    """The option or the circumstance without which it is not recorded."""
    name: str = ""
    """The attribute's name unless given. It may have places, `top{k}_sv_ratio`, which `at` fills."""
    probe: str = ""
    """The class of the probe; set by the class that this is an attribute of."""


@dataclass(frozen=True)
class Quantity(_Fields):
    """What a recorded name means."""

    meaning: str

    def column(
        self, values: Any, labels: Mapping[str, Label] | None = None, status: Mapping[int, str] | None = None
    ) -> Column:
        """Its numbers over the scopes of a table; `status` says, by position, why there is none."""
        return Column(self.name, values, labels or {}, status or {})

    def cells(self, cells: Sequence[float | str | None], **labels: Label) -> Column:
        """Its numbers over the scopes of a table; a text is the reason why there is none."""
        reasons = {place: cell for place, cell in enumerate(cells) if isinstance(cell, str)}
        return self.column([None if isinstance(cell, str) else cell for cell in cells], labels, reasons)

    def row(
        self, value: Any, scope: str = "model", kind: str = "model", labels: Mapping[str, Label] | None = None,
        status: str | None = None,
    ) -> Row:  # fmt: skip
        """One number."""
        return Row(self.name, value, scope, kind, labels or {}, status)

    def at(self, **places: object) -> Quantity:
        """The quantity whose name has these places filled.

        >>> Quantity("share of the k largest", name="top{k}_share").at(k=5).name
        'top5_share'
        """
        return replace(self, name=self.name.format(**places))

    def to_json(self) -> dict[str, Any]:
        """Plain values, without what is empty."""
        body = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: value for key, value in body.items() if value and key != "probe"} | {"kinds": list(self.kinds)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Quantity:
        """What `to_json` gave; fields of a later version are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in body.items() if key in known} | {"kinds": tuple(body["kinds"])})

    def names(self, name: str) -> bool:
        """Whether a recorded name is this quantity's.

        >>> share = Quantity("share of the k largest", name="top{k}_share")
        >>> share.names("top10_share"), share.names("top10_norm")
        (True, False)
        """
        parts = re.split(r"\{\w+\}", self.name)
        return re.fullmatch(".+".join(map(re.escape, parts)), name) is not None


def with_interval(quantity: Quantity, over: str) -> tuple[Quantity, Quantity, Quantity]:
    """A quantity and the ends of its 95 % interval, for attributes `x, x_low, x_high`."""
    end = replace(quantity, name="", meaning=f"95 % interval, {over}", better=None, drawn="not")
    return quantity, end, end


class Quantities:
    """The quantities of a probe. A subclass has the probe's name, and those that it inherits become its own.

    Keywords of a subclass are fields of what it inherits: `class Cut(VariantOutputs, labels={"rank": "of the cut"})`.
    """

    probe: ClassVar[str] = ""
    records: ClassVar[str] = ""
    """What the probe adds to a run, in a few words."""

    def __init_subclass__(cls, **inherited: Any) -> None:
        super().__init_subclass__()
        cls.probe = cls.__name__
        for attribute, quantity in _attributes(cls).items():
            changed = {} if attribute in vars(cls) else inherited
            named = replace(quantity, name=quantity.name or attribute, probe=cls.__name__, **changed)
            setattr(cls, attribute, named)

    @classmethod
    def all(cls) -> list[Quantity]:
        """In the order in which they were written down."""
        return list(_attributes(cls).values())

    @classmethod
    def of(cls, name: str) -> Quantity | None:
        """The quantity of a recorded name; a name without places goes before one with them."""
        exact = [quantity for quantity in cls.all() if quantity.name == name]
        return next(iter([*exact, *(quantity for quantity in cls.all() if quantity.names(name))]), None)

    @classmethod
    def named(cls, name: str) -> Quantity:
        """The quantity of a name that was made elsewhere, to record under it: `top5_sv_ratio` with its 5."""
        quantity = cls.of(name)
        if quantity is None:
            raise KeyError(f"{cls.__name__} declares no quantity {name!r}: add it to {cls.__module__}")
        return replace(quantity, name=name)


def _attributes(cls: type) -> dict[str, Quantity]:
    inherited: dict[str, Quantity] = {}
    for base in reversed(cls.__mro__):
        inherited |= {name: value for name, value in vars(base).items() if isinstance(value, Quantity)}
    return inherited


def names_table(quantities: type[Quantities]) -> str:
    """The names of a probe as a Markdown table, for docs and docstrings.

    Quantities that stand together and differ in their names only share a row.
    """
    lines = ["| name | of | labels | meaning |", "|---|---|---|---|"]
    for group in _alike(quantities.all()):
        first = group[0]
        labels = "; ".join(f"`{label}`: {said}" if said else f"`{label}`" for label, said in first.labels.items())
        meaning = "; ".join(dict.fromkeys(quantity.meaning for quantity in group))
        said = [meaning, *([f"({first.source})"] if first.source else []), *([f"[{first.unit}]"] if first.unit else [])]
        when = f"{first.when}: " if first.when else ""
        names = ", ".join(f"`{quantity.name}`" for quantity in group)
        cells = [names, ", ".join(first.kinds), labels, when + " ".join(said)]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _alike(quantities: list[Quantity]) -> Iterator[list[Quantity]]:
    group: list[Quantity] = []
    for quantity in quantities:
        same = group and all(
            getattr(group[0], name) == getattr(quantity, name)
            for name in ("kinds", "labels", "unit", "source", "when", "meaning")
        )
        if group and not same:
            yield group
            group = []
        group.append(quantity)
    if group:
        yield group
