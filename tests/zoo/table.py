"""The verdicts as text, as JSON and as a table of docs/diagnosis.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from zoo.judge import Verdict
from zoo.registry import Case

BEGIN, END = "<!-- zoo: written by tests/zoo/run.py -->\n", "<!-- end of zoo -->\n"
OUTCOMES = ("right", "symptom", "wrong", "silent")


def line(verdict: Verdict) -> str:
    said = ", ".join(verdict.said) or "–"
    late = "" if verdict.late is None else f" late {verdict.late}"
    return (
        f"{verdict.outcome:8} {verdict.name}, seed {verdict.seed} [{verdict.half}] {verdict.seconds:.1f} s: "
        f"{said}{late} ({verdict.check})"
    )


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"


def figures(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[tuple[str, str, str, str]]:
    """For each figure: its name, of the tuning half, of the judged half, of all."""
    faults = {case.name for case in cases if not case.healthy}
    rows: list[tuple[str, str, str, str]] = []
    halves = [[v for v in verdicts if v.half == half] for half in ("tuning", "judged")]
    groups = [*halves, list(verdicts)]
    ill = [[v for v in group if v.name in faults and v.outcome != "broken"] for group in groups]
    well = [[v for v in group if v.name not in faults and v.outcome != "broken"] for group in groups]

    def row(title: str, parts: Iterable[Sequence[Verdict]], wholes: Iterable[Sequence[Verdict]]) -> None:
        a, b, c = (share(len(part), len(whole)) for part, whole in zip(parts, wholes, strict=True))
        rows.append((title, a, b, c))

    row("faults found (any alarm)", [[v for v in g if v.outcome != "silent"] for g in ill], ill)
    for outcome, title in zip(OUTCOMES, ("cause right", "symptom only", "wrong cause", "silent"), strict=True):
        row(title, [[v for v in g if v.outcome == outcome] for g in ill], ill)
    right = [[v for v in g if v.outcome == "right"] for g in ill]
    row("right, with another cause listed before it", [[v for v in g if v.first is False] for g in right], right)
    dated = [[v for v in g if v.late is not None] for g in right]
    row("right and dated, within two measurements", [[v for v in g if (v.late or 0) <= 2] for g in dated], dated)
    placed = [[v for v in g if v.place is not None] for g in right]
    row("right and tensor, layer or group named", [[v for v in g if v.place] for g in placed], placed)
    row("healthy runs with an alarm", [[v for v in g if v.outcome == "alarmed"] for g in well], well)
    return rows


def as_text(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> str:
    rows = [("", "tuning", "judged", "all"), *figures(cases, verdicts)]
    lines = [f"{a:46}{b:22}{c:22}{d}" for a, b, c, d in rows]
    false = Counter(kind for v in verdicts if v.outcome == "alarmed" for kind in v.said)
    lines += [f"false alarms: {', '.join(f'{kind} {n}' for kind, n in false.most_common()) or 'none'}"]
    broken = [f"broken: {v.name}, seed {v.seed}: {v.check}" for v in verdicts if v.outcome == "broken"]
    return "\n".join(lines + broken) + "\n"


def as_json(verdicts: Sequence[Verdict]) -> str:
    """A line a run, so that two versions of the file are easily compared."""
    rows = []
    for verdict in verdicts:
        body = asdict(verdict)
        del body["seconds"]
        rows.append(json.dumps(body, ensure_ascii=False))
    return "[\n" + ",\n".join(rows) + "\n]\n"


def by_name(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    grouped: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        grouped.setdefault(verdict.name, []).append(verdict)
    return grouped


def counted(words: Iterable[str]) -> str:
    """`right`, or `right 1, silent 1` where seeds differ."""
    counts = Counter(words)
    return ", ".join(word if len(counts) == 1 else f"{word} {n}" for word, n in counts.most_common())


def as_markdown(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> str:
    runs = by_name(verdicts)
    lines = ["| | tuning half | judged half | all |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in figures(cases, verdicts)]
    lines += [
        "",
        "| fault | half | expected | outcome | said (causes with a star) | late |",
        "|---|---|---|---|---|---|",
    ]
    for case in (case for case in cases if not case.healthy and case.name in runs):
        own = runs[case.name]
        said = counted(", ".join(v.said) or "–" for v in own)
        late = ", ".join("–" if v.late is None else str(v.late) for v in own)
        expected = ", ".join(sorted(case.causes))
        lines.append(
            f"| {case.name} | {case.half} | {expected} | {counted(v.outcome for v in own)} | {said} | {late} |"
        )
    lines += ["", "| healthy kind | half | runs | outcome | false alarms |", "|---|---|---|---|---|"]
    for case in (case for case in cases if case.healthy and case.name in runs):
        own = runs[case.name]
        false = counted(kind for v in own if v.outcome == "alarmed" for kind in v.said) or "–"
        lines.append(f"| {case.name} | {case.half} | {len(own)} | {counted(v.outcome for v in own)} | {false} |")
    return "\n".join(lines) + "\n"


def write_page(page: Path, cases: Sequence[Case], verdicts: Sequence[Verdict]) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + as_markdown(cases, verdicts) + END + rest.partition(END)[2])
