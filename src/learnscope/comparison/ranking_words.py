"""What a ranking says: the verdict over all models in about ten lines, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learnscope.comparison.ranking import LOSS, ORIGINAL, PERPLEXITY, Ranking, Stored, ranking_json
from learnscope.quantities.updates import LayerRewind
from learnscope.reading.audit import Audit
from learnscope.reading.audit_numbers import Number, ends_text, interval_text, signed, size
from learnscope.reading.gather import class_of
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Record
from learnscope.report.markdown import escape, table
from learnscope.run import Run

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

NOT_RANKED = 3
"""Models that are named one by one where they are not ranked."""


def ranking_verdict(
    ranking: Ranking, audits: Mapping[str, Audit], rewinds: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """What each line is about, and what it says; most important first."""
    lines: list[tuple[str, str]] = []
    if ranking.points:
        best, smallest = ranking.best, ranking.smallest()
        lines = [("ranked", _on(ranking)), ("best", f"{best.title}: {quality_text(ranking, best)}, {size(best.bytes)}")]
        within = f"smallest within {percent(ranking.allowed)}"
        lines.append((within, f"{smallest.title}: {size(smallest.bytes)}, {change_text(ranking, smallest)}"))
        if ranking.max_bytes is not None:
            fits = ranking.at_size(ranking.max_bytes)
            said = "nothing that was measured" if fits is None else (
                f"{fits.title}: {size(fits.bytes)}, {change_text(ranking, fits)}"
            )  # fmt: skip
            lines.append((f"best in {size(ranking.max_bytes)}", said))
        lines += _fastest(ranking, audits)
        lines += [("dominated", said) for said in _dominated_models(ranking)]
        if ranking.not_finite:
            lines.append(("not finite", listed(list(ranking.not_finite), 3)))
    lines += [("base", said) for said in rewinds]
    left = [("not ranked", f"{name}: {why}") for name, why in ranking.not_ranked.items()]
    alike = set(ranking.not_ranked.values())
    if len(left) > 1 and len(alike) == 1:
        left = [("not ranked", f"{listed(list(ranking.not_ranked), 4)}: {alike.pop()}")]
    more = [("", f"and {len(left) - NOT_RANKED} more are not ranked")] if len(left) > NOT_RANKED else []
    return [*lines, *left[:NOT_RANKED], *more]


def _on(ranking: Ranking) -> str:
    models = list(dict.fromkeys(point.model for point in ranking.points))
    what = "answers" if ranking.measure == LOSS else "tokens" if ranking.measure == PERPLEXITY else "bytes"
    said = (
        f"{count(len(models), 'model')} in {len(ranking.points)} ways to store them, by {ranking.measure} on the same "
    )
    said += f"{count(len(ranking.weights), 'text')} ({ranking.weights.sum():,.0f} {what}), which no search has seen"
    if ranking.measure not in (LOSS, PERPLEXITY):
        said += "; their tokenizers differ"
    return said


def quality_text(ranking: Ranking, point: Stored) -> str:
    accuracy = ranking.accuracy(point)
    right = f", accuracy {num(accuracy)}" if ranking.measure == LOSS and accuracy is not None else ""
    return f"{ranking.measure} {interval_text(ranking.quality(point))}{right}"


def change_text(ranking: Ranking, point: Stored) -> str:
    """What it loses beside the best."""
    if point is ranking.best:
        return "nothing smaller is shown to be within it"
    what = ranking.measure
    if what == LOSS and point.right is not None:
        what = "share of right answers lost"
    return f"{what} {change_cell(ranking.change(point, ranking.best))}"


def change_cell(change: Number) -> str:
    def write(value: float) -> str:
        return f"{signed(float(f'{100 * value:.3g}'))} %"

    ends = ends_text(change, write)
    return f"{write(change.value or 0.0)} ({ends})" if ends else write(change.value or 0.0)


def _fastest(ranking: Ranking, audits: Mapping[str, Audit]) -> list[tuple[str, str]]:
    """The most text a second that any model decodes at batch 1, as stored: timed here."""
    rates: dict[str, tuple[float, str]] = {}
    for name in dict.fromkeys(point.model for point in ranking.points):
        speed = audits[name].speed if name in audits else None
        setting = None if speed is None else speed.alone
        if setting is None or (rate := setting.rate[0].value) is None:
            continue
        per_token = ranking.bytes_per_token.get(name, 1.0) if ranking.measure not in (LOSS, PERPLEXITY) else 1.0
        unit = setting.rate[1] if per_token == 1.0 else "bytes of text a second"
        rates[name] = rate * per_token, f"{num(rate * per_token)} {unit} ({setting.description})"
    if len(rates) < 2:
        return []
    first, second = sorted(rates, key=lambda name: -rates[name][0])[:2]
    return [("fastest here", f"{first}, as stored: {rates[first][1]}; then {second}, {num(rates[second][0])}")]


def _dominated_models(ranking: Ranking) -> list[str]:
    """Models none of which is on the frontier, with one that is smaller and better than the best that they have."""
    on_it = {point.model for point in ranking.frontier}
    said = []
    for name in dict.fromkeys(point.model for point in ranking.points):
        if name not in on_it:
            own = next(point for point in ranking.ranked if point.model == name)
            other = ranking.dominated_by(own)[0]
            said.append(f"{name} in every way: for one, {other.title} has {size(other.bytes)} and "
                        f"{ranking.measure} {num(ranking.quality(other).value or 0)}, {own.title} "
                        f"{size(own.bytes)} and {num(ranking.quality(own).value or 0)}")  # fmt: skip
    return said


def ranking_table(ranking: Ranking) -> list[str]:
    """Every point, the smallest first."""
    rows = []
    smallest = ranking.smallest() if ranking.points else None
    for point in sorted(ranking.points, key=lambda point: point.bytes):
        above = ranking.dominated_by(point)
        more = f" and {len(above) - 1} more" if len(above) > 1 else ""
        quality = ranking.quality(point)
        ends = ends_text(quality)
        stored = ("as stored" if point.name == ORIGINAL else point.name) + (" ★" if point is smallest else "")
        rows.append((
            escape(point.model), escape(stored), size(point.bytes),
            num(quality.value or 0.0) + (f" ({ends})" if ends else ""),
            "the best" if point is ranking.best else change_cell(ranking.change(point, ranking.best)),
            "on the frontier" if not above else escape(f"{above[0].title}{more}"),
        ))  # fmt: skip
    columns = ("model", "stored", "size", ranking.measure, "beside the best", "dominated by")
    return [table(columns, rows)] if rows else []


def rewind_lines(runs: Mapping[str, Run]) -> list[str]:
    """Of models that have the layers of another: how many could have its weights back."""
    said = []
    for label, record in rewinds(runs).items():
        order, back, base = record.notes["order"], record.notes["go_back"], record.notes["base"]
        if not order:
            said.append(f"{label} has the same weights as {base}")
            continue
        which = f" ({listed(back, 3)})" if back else ""
        known = f"; of more it cannot be told: {record.notes['undecided']}" if record.notes.get("undecided") else ""
        differ = count(len(order), "layer differs", "layers differ")
        said.append(f"{label} beside {base}: {differ}, {len(back)} could have {base}'s weights back{which}{known}")
    return said


def rewinds(runs: Mapping[str, Run]) -> dict[str, Record]:
    """The comparison of its layers with those of a base model, of each run that has one."""
    found = {}
    for label, run in runs.items():
        records = [r for r in run.reader.records() if class_of(r.probe) == LayerRewind.probe and not r.error]
        if records and records[-1].notes.get("base"):
            found[label] = records[-1]
    return found


def rewind_tables(runs: Mapping[str, Run]) -> list[str]:
    """By layer, how far it is from the base's and what the model loses with the base's weights there."""
    parts = []
    for label, record in rewinds(runs).items():
        rows = layer_rows(record)
        parts += [
            f"### {escape(label)} beside {escape(record.notes['base'])}, layer by layer",
            table(("layer", "‖W − W₀‖ / ‖W₀‖", "loss with the base's weights", "95 % interval", "could go back"), [
                (escape(str(row["layer"])), _shown(row["distance"]), _shown(row["change"], signed),
                 "" if row["low"] is None else f"{signed(row['low'])} to {signed(row['high'])}",
                 "yes" if row["back"] else "") for row in rows
            ]),
        ]  # fmt: skip
    return parts


def _shown(value: float | None, write: Callable[[float], str] = num) -> str:
    return "n/a" if value is None else write(value)


def layer_rows(record: Record) -> list[dict[str, Any]]:
    """The numbers of each layer; one that could go back does so together with the others."""
    cells: dict[str, dict[str, float | None]] = {}
    for row in record.rows():
        if row.kind == "layer":
            cells.setdefault(row.scope, {})[row.name] = row.value
    names = {"distance": "relative_distance", "kl": "kl", "change": "loss_change", "low": "loss_change_low",
             "high": "loss_change_high"}  # fmt: skip
    back = set(record.notes["go_back"])
    same = set(record.notes["unchanged"])
    return [
        {"layer": layer, "back": layer in back, "same": layer in same}
        | {key: own.get(name) for key, name in names.items()}
        for layer, own in cells.items()
    ]


def ranking_body(comparison: Comparison) -> dict[str, Any]:
    """What the page shows of the ranking, and of layers beside those of a base model."""
    ranking = comparison.ranking
    bases = [
        {"model": label, "base": record.notes["base"], "layers": layer_rows(record)}
        for label, record in rewinds(comparison.opened).items()
    ]
    if ranking is None:
        return {"ranking": None, "bases": bases}
    said = ranking_verdict(ranking, comparison.audits, rewind_lines(comparison.opened))
    smallest = ranking.smallest().title if ranking.points else None
    limit = None
    if ranking.points and ranking.measure != LOSS:
        limit = ranking.shown(ranking.loss(ranking.best)) * (1 + ranking.allowed)
    body = {**(ranking_json(ranking) or {}), "verdict": said, "smallest": smallest, "limit": limit}
    return {"ranking": body, "bases": bases}
