"""Lines as records; one that is torn or damaged costs only itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from learnscope.record import Record


def judged(lines: Iterable[bytes]) -> Iterator[tuple[bytes, Record | str]]:
    """Every line that is not blank, with its record or with what is wrong with it."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield line, judge(number, line)


def judge(number: int, line: bytes) -> Record | str:
    """The record of a line of records.jsonl, or the sentence that reports it."""
    try:
        return Record.from_json(line)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"line {number} of records.jsonl is torn or damaged and was skipped ({error})"


def parsed(lines: Iterable[bytes], problems: list[str]) -> Iterator[Record]:
    """The records; what could not be read is added to `problems`."""
    for _, found in judged(lines):
        if isinstance(found, str):
            problems.append(found)
        else:
            yield found
