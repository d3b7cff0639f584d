"""Training examples with a score: those with the highest, and what these have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from learnscope.intervals import wilson
from learnscope.reading.gather import Floats

Ids = NDArray[np.int64]
UNLABELLED = -100
NO_GROUPS = "the batches carry no groups"


@dataclass(frozen=True, eq=False, kw_only=True)
class Attributions(Mapping[int, float]):
    """By the id of an example its score, NaN where it has none; the same as arrays, in the order of the data."""

    method: str
    before: int
    after: int
    """The epochs between which examples were judged."""
    ids: Ids
    scores: Floats
    labels: Ids | None = None
    """Classes, -100 for an example without one; None where examples have no classes."""
    groups: Sequence[str] | None = None
    cosine: Floats | None = None
    """Of an example's gradients before and after."""
    loss_before: Floats | None = None
    loss_after: Floats | None = None
    reasons: Mapping[int, str] = field(default_factory=dict)
    """By id: why an example has no score."""
    unlabelled: str | None = None
    how: str = ""

    def __getitem__(self, example: int) -> float:
        return float(self.scores[self.place[example]])

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids.tolist())

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        scored = int(np.isfinite(self.scores).sum())
        return f"Attributions({self.method!r}, epochs {self.before} to {self.after}, {scored} of {len(self)} examples)"

    @property
    def classes(self) -> list[int | None] | None:
        """The labels, None for an example without one."""
        return None if self.labels is None else [None if c == UNLABELLED else c for c in self.labels.tolist()]

    @cached_property
    def place(self) -> dict[int, int]:
        """Where in the arrays an example is, by its id."""
        return {example: place for place, example in enumerate(self.ids.tolist())}


@dataclass(frozen=True, eq=False)
class CriticalExamples(Sequence[int]):
    """The ids of the examples with the highest scores, the highest first."""

    of: Attributions
    places: Ids
    """Where in the arrays of `of` they are."""

    @cached_property
    def ids(self) -> list[int]:
        return [int(example) for example in self.of.ids[self.places]]

    @property
    def scores(self) -> list[float]:
        return [float(score) for score in self.of.scores[self.places]]

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        return self.ids[place]

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        return f"CriticalExamples({self.ids})"


def critical_examples(attributions: Attributions, top_k: int) -> CriticalExamples:
    """The `top_k` examples of the highest scores, equal ones in the order of their ids; those without one never."""
    scored = np.flatnonzero(np.isfinite(attributions.scores))
    order = np.lexsort((attributions.ids[scored], -attributions.scores[scored]))
    return CriticalExamples(attributions, scored[order][:top_k])


def analyze(critical: CriticalExamples) -> dict[str, Any]:
    """What the critical examples have in common, beside all examples. What is None has its reason in `reasons`.

    `label_enrichment` and `group_enrichment` compare with a random draw of as many from the examples that have a
    score; see `enrichment`. `share_of_loss_drop` is what they lost of loss over what all examples lost together: more
    than 1 if the others gained.
    """
    of = critical.of
    reasons: dict[str, str] = {}
    summary: dict[str, Any] = {
        "examples": len(critical), "of": len(of), "with_score": int(np.isfinite(of.scores).sum()),
        "method": of.method, "epochs": (of.before, of.after),
    }  # fmt: skip
    for what, names, missing in (("label", of.classes, of.unlabelled), ("group", of.groups, NO_GROUPS)):
        keys = (f"{what}_distribution", f"all_{what}_distribution", f"{what}_enrichment")
        if names is None:
            summary |= dict.fromkeys(keys)
            reasons |= dict.fromkeys(keys, missing or "not known")
            continue
        summary[keys[0]] = _counts([names[place] for place in critical.places.tolist()])
        summary[keys[1]] = _counts(names)
        summary[keys[2]] = enrichment(critical, names)
    for name, value, reason in _losses(critical):
        summary[name] = value
        reasons |= {name: reason} if value is None else {}
    return {**summary, "reasons": reasons}


def enrichment(critical: CriticalExamples, names: Sequence[Any]) -> dict[Any, dict[str, Any]]:
    """By name: how many of the critical examples have it, and whether that is more, or less, than chance gives.

    `ratio` is its share among them (with a 95 % interval) over its share among all examples with a score. `p_value` is
    two-sided, twice the smaller tail of the hypergeometric distribution; `p_adjusted` holds the share of false finds
    over all names (Benjamini and Hochberg).
    """
    from scipy.stats import false_discovery_control, hypergeom

    population = [names[place] for place in np.flatnonzero(np.isfinite(critical.of.scores)).tolist()]
    all_of, critical_counts = _counts(population), Counter(names[place] for place in critical.places.tolist())
    n, drawn = len(population), len(critical)
    if not drawn:
        return {}
    rows = {}
    for name, size in all_of.items():
        k = critical_counts[name]
        more, fewer = hypergeom.sf(k - 1, n, size, drawn), hypergeom.cdf(k, n, size, drawn)
        rows[name] = {
            "critical": k, "all": size, "share": k / drawn, "share_interval": wilson(k / drawn, drawn),
            "ratio": (k / drawn) / (size / n), "p_value": float(min(1.0, 2 * min(more, fewer))),
        }  # fmt: skip
    adjusted = false_discovery_control([row["p_value"] for row in rows.values()])
    return {name: {**row, "p_adjusted": float(p)} for (name, row), p in zip(rows.items(), adjusted, strict=True)}


def _counts(names: Sequence[Any]) -> dict[Any, int]:
    """By name, in order; examples without one are left out."""
    counts = Counter(name for name in names if name is not None)
    return {name: counts[name] for name in sorted(counts)}


def _losses(critical: CriticalExamples) -> Iterator[tuple[str, float | None, str]]:
    of, places = critical.of, critical.places
    for name, column in (("loss_before", of.loss_before), ("loss_after", of.loss_after), ("cosine", of.cosine)):
        for key, values, empty in (
            (f"mean_{name}", None if column is None else column[places], "there is no critical example"),
            (f"all_mean_{name}", column, "no example has one"),
        ):
            finite = np.empty(0) if values is None else values[np.isfinite(values)]
            absent = f"{of.method} compares no {name.replace('_', ' ')} of an example"
            yield key, float(finite.mean()) if len(finite) else None, absent if values is None else empty
    if of.loss_before is None or of.loss_after is None:
        yield "share_of_loss_drop", None, f"{of.method} compares no losses"
        return
    drop = of.loss_before - of.loss_after
    total = float(drop[np.isfinite(drop)].sum())
    share = float(drop[places].sum()) / total if total > 0 else None
    yield "share_of_loss_drop", share, "the examples together lost no loss"
