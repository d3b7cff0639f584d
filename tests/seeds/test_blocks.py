"""Every code block of the five documents is in the table, and does what the table says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import shlex
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from learnscope.model.cost import speed
from seeds import dynamics, fixtures, posttrain, telemetry, trackers
from seeds.fixtures import FIXTURES
from seeds.reader import Block, Entry, all_blocks, runnable, table
from seeds.room import Room

IMPORTS, ENTRIES = table()
COMPARED = {**fixtures.COMPARED, **telemetry.COMPARED, **dynamics.COMPARED, **trackers.COMPARED, **posttrain.COMPARED}
BLOCKS = {(block.document, block.line): block for block in all_blocks()}
NEEDED = {
    "run": set(), "fixture": {"fixture"}, "specification": {"of"}, "compared": {"of"}, "exempt": {"reason"},
}  # fmt: skip
ALLOWED = {
    "run": {"fixture"}, "fixture": {"fixture", "also", "open", "after", "reason"}, "specification": {"of"},
    "compared": {"of"}, "exempt": {"reason"},
}  # fmt: skip
ALWAYS = {"document", "line", "digest", "language", "how"}


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of the models here matters to nobody: three seconds of passes for each are too many."""
    monkeypatch.setattr(speed, "MAIN_SHARE", 1)


def entries(*how: str) -> Any:
    return pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.how in how], ids=str)


# ---- the table and the documents agree


@pytest.mark.parametrize("block", BLOCKS.values(), ids=str)
def test_the_block_is_in_the_table(block: Block) -> None:
    listed = [entry for entry in ENTRIES if (entry.document, entry.line) == (block.document, block.line)]
    assert len(listed) == 1, f"{block} must be listed in blocks.toml once, with digest {block.digest!r}"
    assert (listed[0].digest, listed[0].language) == (block.digest, block.language), f"{block} has changed: look again"


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_the_entry_is_whole(entry: Entry) -> None:
    assert (entry.document, entry.line) in BLOCKS, f"there is no code block at {entry}"
    assert entry.how in NEEDED, f"{entry}: how = {entry.how!r} is none of {', '.join(NEEDED)}"
    given = {name for name, value in dataclasses.asdict(entry).items() if value} - ALWAYS
    assert NEEDED[entry.how] <= given, f"{entry}: {entry.how} needs {', '.join(NEEDED[entry.how])}"
    assert given <= ALLOWED[entry.how], f"{entry}: {entry.how} has no {', '.join(given - ALLOWED[entry.how])}"
    assert bool(entry.after) <= bool(entry.reason), f"{entry}: what comes before {entry.after!r} needs a reason"


def test_every_fixture_is_used() -> None:
    assert {name for entry in ENTRIES for name in (entry.fixture, entry.also) if name} == FIXTURES.keys()
    assert {entry.of for entry in ENTRIES if entry.how == "compared"} == COMPARED.keys()


# ---- and the blocks do what the table says


EXECUTED = [entry for entry in ENTRIES if entry.how in ("run", "fixture")]
AGAIN = [entry for entry in EXECUTED if entry.also]
RUNS = [*((entry, entry.fixture) for entry in EXECUTED), *((entry, entry.also) for entry in AGAIN)]
NAMES = [*map(str, EXECUTED), *(f"{entry} {entry.also}" for entry in AGAIN)]


@pytest.mark.parametrize(
    ("entry", "fixture"),
    RUNS,
    ids=[f"{entry} {name}" if name == entry.also != "" else str(entry) for entry, name in RUNS],
)
def test_the_block_runs(
    entry: Entry, fixture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = BLOCKS[entry.document, entry.line]
    assert block.language == "python"
    code = compile(runnable(block, entry, IMPORTS), f"document {entry}", "exec")
    monkeypatch.chdir(tmp_path)
    if not fixture:
        exec(code, {"__name__": "__main__"})
        return
    with FIXTURES[fixture](Room(tmp_path, lambda: capsys.readouterr().out)) as names:
        assert entry.how == "fixture" or not names, f"{entry} is run as printed: it may not be given names"
        names["__name__"] = "__main__"
        exec(code, names)


@entries("specification")
def test_the_class_is_as_specified(entry: Entry) -> None:
    """Every field that the document declares, in its order, with its type and default. (Executed, it would be an error:
    a dataclass takes no list as a default.)"""
    module, _, name = entry.of.rpartition(".")
    built = getattr(importlib.import_module(module), name)
    declared = next(node for node in ast.parse(BLOCKS[entry.document, entry.line].text).body)
    assert isinstance(declared, ast.ClassDef)
    assert declared.name == name
    types = typing.get_type_hints(built)
    defaults = dataclasses.asdict(built())
    fields = [node for node in declared.body if isinstance(node, ast.AnnAssign)]
    assert len(fields) == len(declared.body) > 0
    names = [node.target.id for node in fields if isinstance(node.target, ast.Name)]
    assert [known for known in defaults if known in names] == names
    for node, field in zip(fields, names, strict=True):
        assert node.value is not None
        assert types[field] == eval(ast.unparse(node.annotation)), field
        expected = ast.literal_eval(node.value)
        assert (defaults[field], type(defaults[field])) == (expected, type(expected)), field


@entries("compared")
def test_what_is_built_is_as_the_block_shows(entry: Entry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room = Room(tmp_path, lambda: capsys.readouterr().out)
    COMPARED[entry.of](BLOCKS[entry.document, entry.line].text, room)


@pytest.mark.soak
def test_the_full_training_as_it_is_printed(tmp_path: Path) -> None:
    """`bash scripts/test_tracking.sh`, with every step, in an interpreter of its own."""
    words = shlex.split(BLOCKS["002", 181].text)
    ran = subprocess.run(
        [words[0], str(trackers.ROOT / words[1])], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    trackers.assert_full_training(ran.stdout)
