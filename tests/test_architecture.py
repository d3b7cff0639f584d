"""The rules of the architecture: which floor may import which, what stays free of torch, how large things grow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "learnscope"

FAMILIES = {
    "weights", "gradients", "updates", "outputs", "examples", "features", "adapters", "bits", "robustness", "cost",
    "landscape",
}  # fmt: skip
FLOORS_OF_FAMILIES = ("quantities", "tensor", "model", "probes", "findings", "report")
NOT_FAMILIES = {"report": {"audit", "page", "telemetry"}}
"""Pages with files of their own: they draw on several families."""

_NUMBERS = {"characters", "record", "intervals", "names", "options", "quantities"}
_PROBING = {*_NUMBERS, "progress", "store", "task", "tensor", "model", "core", "ledger"}
_READING = {*_NUMBERS, "store", "ledger", "reading", "findings", "report"}
_SESSION = {*_PROBING, "probes", "sinks", "run", "session"}
_DOOR = {*_SESSION, *_READING}

# A room may import itself and what is named here; the table in docs/architecture.md says the same.
ROOMS: dict[str, set[str]] = {
    "characters": set(),
    "generators": set(),
    "native": set(),
    "record": {"characters"},
    "intervals": set(),
    "names": set(),
    "options": set(),
    "progress": set(),
    "redaction": set(),
    "quantities": {"record"},
    "store": {"characters", "record"},
    "ledger": {"characters", "record", "options", "store", "native"},
    "sources": {"record", "options"},
    "task": set(),
    "tensor": {"native"},
    "model": {"intervals", "names", "options", "tensor", "task", "store"},
    "core": {*_NUMBERS, "progress", "store", "task", "tensor", "model"},
    "probes": _PROBING,
    "sinks": {"characters", "generators", "options", "record", "quantities", "store"},
    "reading": {*_NUMBERS, "store", "ledger"},
    "findings": {*_NUMBERS, "store", "ledger", "reading"},
    "report": {*_NUMBERS, "store", "ledger", "reading", "findings"},
    "run": {*_READING, "model", "generators"},  # model: imported for patches, or where torch is there, not before
    "comparison": {*_READING, "run", "model"},  # model: imported when runs have kept weights, not before
    "live": {*_READING, "run", "comparison"},
    "importing": {"characters", "generators", "record", "options", "redaction", "quantities", "store", "run"},
    "session": {
        *_SESSION,
        "native",  # hooks of every step
        "findings",
        "redaction",
    },  # findings: for alerts and shown examples, imported when a session has some
    "analysis": _DOOR,
    "telemetry": _DOOR,
    "dynamics": _DOOR,
    "trackers": _DOOR,
    "posttrain": {*_DOOR, "comparison", "sources"},
    "integrations": {*_DOOR, "generators"},
    "training": {*_DOOR, "trackers", "sources", "integrations", "__init__"},
    "demo": {"*"},
    "cli": {"*"},
    "__init__": {"*"},
}
TORCH_FREE = {
    "characters", "generators", "native", "record", "intervals", "names", "options", "progress", "redaction",
    "quantities", "store", "ledger", "sources", "sinks", "reading", "findings", "report", "run", "comparison", "live",
    "importing",
}  # fmt: skip
LINES = 300
FILES = 20
TORCH_FILES = {"rolling.py", "tracker_file.py", "user_checkpoint.py"}
"""What writes files that other programs read with torch.load: tensors, names and numbers, safe with weights_only. The
last writes a checkpoint that the user's own loop reads: what is in it is the user's."""


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every absolute name that a file imports, also inside functions and for type checking only."""
    names: list[str] = []
    package = ["learnscope", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}" for alias in node.names]
    return tuple(names)


def no_cycle(needs: Mapping[str, Iterable[str]]) -> None:
    done: set[str] = set()
    left = {name: set(others) - {name} for name, others in needs.items()}
    while left:
        ready = [name for name, others in left.items() if others <= done]
        assert ready, f"a cycle among { ({name: sorted(others - done) for name, others in left.items()}) }"
        done.update(ready)
        for name in ready:
            del left[name]


def test_rooms_import_only_what_they_may() -> None:
    for path in files():
        room = room_of(path)
        assert room in ROOMS, f"{room} is a new room: say what it may import"
        allowed = ROOMS[room] | {room}
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "torch":
                assert room not in TORCH_FREE, f"{shown(path)} imports torch, which must not be needed to read a run"
            if parts[0] != "learnscope":
                continue
            target = parts[1] if len(parts) > 1 and parts[1] in ROOMS else "__init__"  # a public name
            assert "*" in allowed or target in allowed, f"{shown(path)}: {room} may not import {target} ({name})"


def test_the_rooms_have_no_cycle() -> None:
    no_cycle({room: needs - {"*"} for room, needs in ROOMS.items()})


def test_the_table_of_rooms_in_the_docs_is_this_one() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("## The rooms")[1].split("\n## ")[0]
    said: dict[str, set[str]] = {}
    free: set[str] = set()
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rooms = re.findall(r"`([\w.]+)/?`", cells[0])
        if len(cells) != 4 or not rooms:
            continue
        for room in rooms:
            name = room.removesuffix(".py")
            said[name] = {"*"} if cells[2] == "everything" else set(re.findall(r"\w+", cells[2])) - {"nothing"}
            if cells[3] == "no":
                free.add(name)
    assert said == {name: needs for name, needs in ROOMS.items() if name != "__init__"} | {
        "training": ROOMS["training"] - {"__init__"}
    }
    assert free == TORCH_FREE


def test_families_have_the_same_names_on_every_floor_and_no_cycle() -> None:
    for floor in FLOORS_OF_FAMILIES:
        folder = SOURCE / floor
        own = NOT_FAMILIES.get(floor, set())
        inside = {path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
        inside |= {path.stem for path in folder.glob("*.py")} if floor == "quantities" else set()
        known = FAMILIES | own | ({"__init__", "base"} if floor == "quantities" else set())
        assert inside <= known, f"{floor} has {inside - known}"
        needs: dict[str, set[str]] = {family: set() for family in inside & FAMILIES}
        for path in files():
            parts = path.relative_to(SOURCE).parts
            if parts[0] == floor and parts[1].removesuffix(".py") in needs:
                used = [name.split(".") for name in imports(path) if name.startswith(f"learnscope.{floor}.")]
                needs[parts[1].removesuffix(".py")] |= {name[2] for name in used if name[2] in needs}
        no_cycle(needs)


def test_tests_stand_where_the_source_does() -> None:
    for floor in FLOORS_OF_FAMILIES:
        folder = ROOT / "tests" / floor
        if folder.is_dir():
            inside = {path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
            assert inside <= FAMILIES | NOT_FAMILIES.get(floor, set()), floor


def run_python(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_and_opening_a_run_do_not_import_torch(tmp_path: Path) -> None:
    import torch

    import learnscope as ls

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(8, 3), torch.zeros(8, dtype=torch.int64))]
    probes = [ls.GradientFlow(every=1), ls.Holdout(every=1), ls.Loss()]
    with ls.watch(model, optimizer, run=tmp_path / "r", probes=probes, holdout=data) as w:
        for _ in range(5):
            loss = model(data[0][0]).square().mean()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    program = f"""
import sys
import learnscope as ls
assert "torch" not in sys.modules, "importing learnscope"
run = ls.open_run({str(tmp_path / "r")!r})
assert len(run.frame()) > 10
assert run.arrays("Holdout")["logits"].shape == (8, 2)
run.findings()
run.report()
print("torch" in sys.modules)
"""
    assert run_python(program) == "False"


def test_every_public_name_is_there() -> None:
    program = "import learnscope as ls; print(all(getattr(ls, name) is not None for name in ls.__all__))"
    assert run_python(program) == "True"


def test_files_and_folders_stay_small() -> None:
    for path in files():
        assert len(path.read_text().splitlines()) <= LINES, f"{shown(path)}: a file this long is usually two"
    for folder in {path.parent for path in files()}:
        inside = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(inside) <= FILES, f"{shown(folder)} holds {len(inside)} files"


def test_nothing_is_pickled() -> None:
    for path in files():
        text = path.read_text()
        assert "pickle.load" not in text, path
        assert "weights_only=False" not in text, path
        assert "torch.save(" not in text or path.name in TORCH_FILES, path
