"""The verdicts as text, as JSON and as a table of docs/diagnosis.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zoo.judge import Verdict
from zoo.registry import Case

BEGIN, END = "<!-- zoo: written by tests/zoo/run.py -->\n", "<!-- end of zoo -->\n"


def line(verdict: Verdict) -> str:
    said = ", ".join(verdict.said) or "–"
    late = "" if verdict.late is None else f" late {verdict.late}"
    return (
        f"{verdict.outcome:8} {verdict.name}, seed {verdict.seed} [{verdict.half}] {verdict.seconds:.1f} s: "
        f"{said}{late} ({verdict.check})"
    )


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"


PARTS = ("tuning", "judged", "unseen", "blind", "second", "third", "fourth", "fifth")


def figures(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """For each figure: its name, and what it is of each of the parts and of all."""
    faults = {case.name for case in cases if not case.healthy}
    groups = [*([v for v in verdicts if v.half == part] for part in PARTS), list(verdicts)]
    ill = [[v for v in group if v.name in faults and v.outcome != "broken"] for group in groups]
    well = [[v for v in group if v.name not in faults and v.outcome != "broken"] for group in groups]
    right = [[v for v in group if v.outcome == "right"] for group in ill]
    dated = [[v for v in group if v.late is not None] for group in right]
    placed = [[v for v in group if v.place is not None] for group in right]

    def row(title: str, wholes: list[list[Verdict]], counts: Callable[[Verdict], bool]) -> tuple[str, ...]:
        return title, *(share(sum(map(counts, whole)), len(whole)) for whole in wholes)

    return [
        row("faults found (any alarm)", ill, lambda v: v.outcome != "silent"),
        row("cause right", ill, lambda v: v.outcome == "right"),
        row("symptom only", ill, lambda v: v.outcome == "symptom"),
        row("wrong cause", ill, lambda v: v.outcome == "wrong"),
        row("silent", ill, lambda v: v.outcome == "silent"),
        row("right, with another cause listed before it", right, lambda v: v.first is False),
        row("right and dated, within two measurements", dated, lambda v: (v.late or 0) <= 2),
        row("right and tensor, layer or group named", placed, lambda v: bool(v.place)),
        row("healthy runs with an alarm", well, lambda v: v.outcome == "alarmed"),
    ]


def as_text(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> str:
    rows = [("", *PARTS, "all"), *figures(cases, verdicts)]
    lines = [f"{row[0]:46}" + "".join(f"{cell:20}" for cell in row[1:]).rstrip() for row in rows]
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


def as_verdict(body: dict[str, Any]) -> Verdict:
    """Of a row of the file: its lists are the tuples that they were."""
    return Verdict(**{key: tuple(value) if isinstance(value, list) else value for key, value in body.items()})


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
    lines = [
        "| | tuning half | judged half | unseen | blind | second | third | fourth | fifth | all |",
        "|---" * 10 + "|",
    ]
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
