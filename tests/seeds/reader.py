"""Reads the code blocks of the documents and the table that says what is done with each."""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
OPENING = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>.*?)[ \t]*$")


@dataclass(frozen=True)
class Block:
    """A fenced code block; `line` is that of its opening fence, counted from 1."""

    document: str
    line: int
    language: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True)
class Entry:
    """What the table says about a block; the head of blocks.toml explains the fields."""

    document: str
    line: int
    digest: str
    language: str
    how: str
    fixture: str = ""
    also: str = ""
    open: list[str] = field(default_factory=list)
    after: str = ""
    of: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(document: str, text: str) -> list[Block]:
    """All fenced blocks, as CommonMark reads them: a fence is closed by one of its own kind that is at least as long,
    so that blocks may show fences; the indentation of the opening fence is taken off every line."""
    found: list[Block] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = OPENING.match(lines[number])
        number += 1
        if opening is None or ("`" in opening["info"] and opening["fence"][0] == "`"):
            continue
        start, inside = number, []
        closing = re.compile(rf"^[ \t]*{re.escape(opening['fence'][0])}{{{len(opening['fence'])},}}[ \t]*$")
        while number < len(lines) and not closing.match(lines[number]):
            inside.append(re.sub(rf"^[ \t]{{0,{len(opening['indent'])}}}", "", lines[number]))
            number += 1
        if number == len(lines):
            raise ValueError(f"{document}:{start}: the code block that opens here is never closed")
        number += 1
        language = opening["info"].split()[0] if opening["info"] else ""
        found.append(Block(document, start, language, "".join(line + "\n" for line in inside)))
    return found


def documents() -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((HERE / "documents").glob("*.txt"))}


def all_blocks() -> list[Block]:
    return [block for name, text in documents().items() for block in blocks_of(name, text)]


def block_at(document: str, line: int) -> Block:
    return next(block for block in blocks_of(document, documents()[document]) if block.line == line)


def table() -> tuple[dict[str, str], list[Entry]]:
    """The names that imports are mapped to, and the entries."""
    read = tomllib.loads((HERE / "blocks.toml").read_text(encoding="utf-8"))
    return read["imports"], [Entry(**entry) for entry in read["block"]]


# ---- from what is printed to what can be run


def with_mapped_imports(code: str, names: Mapping[str, str]) -> str:
    """`code` with the modules of its import lines renamed and nothing else touched."""
    for old, new in names.items():
        pattern = rf"^([ \t]*(?:from|import)[ \t]+){re.escape(old)}(?=[ \t.,]|$)"
        code = re.sub(pattern, rf"\g<1>{new}", code, flags=re.MULTILINE)
    return code


def with_filled_holes(code: str, fillings: Sequence[str]) -> str:
    """`code` with each `...` that it leaves to the reader, in order, replaced by the text that stands in for it."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant) and node.value is Ellipsis]
    if len(nodes) != len(fillings):
        raise ValueError(f"{len(nodes)} times '...', but {len(fillings)} fillings")
    lines = code.encode().split(b"\n")  # the tree counts columns in bytes
    places = sorted((node.lineno - 1, node.col_offset, node.end_col_offset or 0) for node in nodes)
    for (row, start, end), filling in reversed(list(zip(places, fillings, strict=True))):
        lines[row] = lines[row][:start] + filling.encode() + lines[row][end:]
    return b"\n".join(lines).decode()


def after_line(code: str, mark: str) -> str:
    """What follows the line `mark`; as many empty lines before it as were cut, so that line numbers stay."""
    before, found, rest = code.partition(f"{mark}\n")
    if not found:
        raise ValueError(f"no line {mark!r}")
    return "\n" * (before.count("\n") + 1) + rest


def runnable(block: Block, entry: Entry, names: Mapping[str, str]) -> str:
    code = textwrap.dedent(block.text)
    code = after_line(code, entry.after) if entry.after else code
    return with_filled_holes(with_mapped_imports(code, names), entry.open)
