"""A quantity: one name that a probe records, with its meaning, and how to read and draw it.

The quantities of a probe are a class with the probe's name; its attributes are the recorded names:

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Literal

from learnscope.record import Column, Label, Row

Better = Literal["higher", "lower"]
Scale = Literal["linear", "log", "share"]
Drawn = Literal["by kind", "in a figure of its own", "not"]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What a recorded name means."""

    kinds: tuple[str, ...] = ("model",)
    """What it is a number of: `model`, `layer`, `component`, `group` (of the optimizer), `named` (a group that the
    user named), `tensor`, `module`, or a kind of the probe's own such as `site` or `configuration`."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The conditions of a measurement, each with its meaning: `{"threshold": "the t of |Δ| ≤ t"}`."""
    unit: str = ""
    source: str = ""
    """Where the formula comes from."""
    better: Better | None = None
    """Which direction is better; a comparison of runs then marks the best value."""
    scale: Scale = "linear"
    drawn: Drawn = "by kind"
    """In a report: `by kind` gives layers a heatmap and the model a curve."""
    when: str = ""
    """The option or the circumstance without which it is not recorded."""
    name: str = ""
    """By default the attribute's name. It may have placeholders, `top{k}_sv_ratio`, which `at` fills."""
    probe: str = ""
    """The probe's class; set by the class that this is an attribute of."""
    meaning: str = field(kw_only=False)

    def column(
        self, values: Any, labels: Mapping[str, Label] | None = None, status: Mapping[int, str] | None = None
    ) -> Column:
        """Its numbers over the scopes of a table; `status` gives, by position, the reason for a missing one."""
        return Column(self.name, values, labels or {}, status or {})

    def cells(self, cells: Sequence[float | str | None], **labels: Label) -> Column:
        """Its numbers over the scopes of a table; a text is the reason why there is none."""
        if len(cells) == 1:  # of the model, as most are
            only = cells[0]
            return (
                Column(self.name, [None], labels, {0: only}) if type(only) is str else Column(self.name, [only], labels)
            )
        reasons = {place: cell for place, cell in enumerate(cells) if isinstance(cell, str)}
        return self.column([None if isinstance(cell, str) else cell for cell in cells], labels, reasons)

    def row(
        self, value: Any, scope: str = "model", kind: str = "model", labels: Mapping[str, Label] | None = None,
        status: str | None = None,
    ) -> Row:  # fmt: skip
        return Row(self.name, value, scope, kind, labels or {}, status)

    def of(self, *kinds: str) -> Quantity:
        """The same of these kinds alone: `GradientFlow.norm.of("layer")` for what a norm of the model does not tell."""
        return replace(self, kinds=kinds)

    def at(self, **values: object) -> Quantity:
        """The quantity with the placeholders of its name filled.

        >>> Quantity("share of the k largest", name="top{k}_share").at(k=5).name
        'top5_share'
        """
        return replace(self, name=self.name.format(**values))

    def to_json(self) -> dict[str, Any]:
        """Plain values; empty fields are left out."""
        body = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: value for key, value in body.items() if value and key != "probe"} | {"kinds": list(self.kinds)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Quantity:
        """The inverse of `to_json`; fields of a later version are ignored."""
        own = {field.name: body[field.name] for field in fields(cls) if field.name in body}
        return cls(**own | {"kinds": tuple(body["kinds"])})

    def names(self, name: str) -> bool:
        """Whether a recorded name is this quantity's.

        >>> share = Quantity("share of the k largest", name="top{k}_share")
        >>> share.names("top10_share"), share.names("top10_norm")
        (True, False)
        """
        parts = re.split(r"\{\w+\}", self.name)
        return re.fullmatch(".+".join(map(re.escape, parts)), name) is not None


not_drawn = partial(Quantity, drawn="not")
own_figure = partial(Quantity, drawn="in a figure of its own")


def with_interval(quantity: Quantity, over: str) -> tuple[Quantity, Quantity, Quantity]:
    """A quantity and the ends of its 95 % interval, for attributes `x, x_low, x_high`."""
    end = replace(quantity, name="", meaning=f"95 % interval, {over}", better=None, drawn="not")
    return quantity, end, end


class Quantities:
    """The quantities of a probe. A subclass has the probe's name and gets its own copies of inherited quantities.

    Keywords of a subclass change the inherited ones: `class Cut(VariantOutputs, labels={"rank": "of the cut"})`.
    """

    probe: ClassVar[str] = ""
    records: ClassVar[str] = ""
    """What the probe adds to a run, in a few words."""

    def __init_subclass__(cls, **inherited: Any) -> None:
        super().__init_subclass__()
        cls.probe = cls.__name__
        for attribute, quantity in _attributes(cls).items():
            changed = {} if attribute in vars(cls) else inherited
            setattr(cls, attribute, replace(quantity, name=quantity.name or attribute, probe=cls.__name__, **changed))

    @classmethod
    def all(cls) -> list[Quantity]:
        """In the order of their declarations."""
        return list(_attributes(cls).values())

    @classmethod
    @lru_cache(maxsize=4096)  # asked for every column of every firing
    def of(cls, name: str) -> Quantity | None:
        """The quantity of a recorded name; a name without placeholders goes before one with them."""
        matches = sorted((q for q in cls.all() if q.names(name)), key=lambda quantity: quantity.name != name)
        return matches[0] if matches else None

    @classmethod
    @lru_cache(maxsize=4096)
    def named(cls, name: str) -> Quantity:
        """The quantity of a name whose placeholders are filled already, to record under it: `top5_sv_ratio`."""
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
    """The names of a probe as a Markdown table; neighbours that differ only in their names share a row."""
    shared = attrgetter("kinds", "labels", "unit", "source", "when", "meaning")
    lines = ["| name | of | labels | meaning |", "|---|---|---|---|"]
    for (kinds, labels, unit, source, when, meaning), group in groupby(quantities.all(), key=shared):
        names = ", ".join(f"`{quantity.name}`" for quantity in group)
        conditions = "; ".join(f"`{label}`: {text}" if text else f"`{label}`" for label, text in labels.items())
        text = f"{when}: " * bool(when) + meaning + f" ({source})" * bool(source) + f" [{unit}]" * bool(unit)
        cells = [cell.replace("|", r"\|") for cell in (names, ", ".join(kinds), conditions, text)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
