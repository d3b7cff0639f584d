"""Lines as records; a torn or damaged line does not affect the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from learnscope.record import Record


def parse_lines(lines: Iterable[bytes]) -> Iterator[tuple[bytes, Record | str]]:
    """Every line that is not blank, with its record or with the problem that it has."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield line, parse_line(number, line)


def parse_line(number: int, line: bytes) -> Record | str:
    """The record of a line of records.jsonl, or a sentence that states the problem."""
    try:
        return Record.from_json(line)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"line {number} of records.jsonl is torn or damaged and was skipped ({error})"


def records_in(lines: Iterable[bytes], problems: list[str]) -> Iterator[Record]:
    """The records; lines that could not be read are added to `problems`."""
    for _, record in parse_lines(lines):
        if isinstance(record, str):
            problems.append(record)
        else:
            yield record
