"""The rules of the architecture: which room may import which, what stays free of torch, how large files grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "learnscope"

_BEHIND_SESSIONS = {
    "options", "arguments", "record", "task", "tensor", "model", "probing", "moment", "subject", "probes", "store",
    "sinks", "run", "ledger", "progress", "allocation", "sensitivities",
}  # fmt: skip

_BEHIND_PROBES = {"record", "probing", "moment", "subject", "task", "tensor", "model"}

# A room may import itself and what stands behind it; those without any need only the standard library.
ROOMS: dict[str, set[str]] = {
    "options": set(),
    "arguments": set(),
    "allocation": set(),
    "sensitivities": {"allocation", "store"},
    "progress": set(),
    "record": set(),
    "intervals": set(),
    "sources": set(),
    "task": set(),
    "tensor": set(),
    "model": {"tensor", "task", "store"},  # store: files written whole or not at all
    "probing": {"options", "record", "moment"},
    "quiet": {"probing", "sources"},
    "subject": {"task", "model", "tensor"},
    "moment": {"record", "subject", "task", "model", "tensor", "progress", "store"},
    "probes": {"ledger", "intervals", "allocation", "sensitivities", *_BEHIND_PROBES},
    "store": {"record"},
    "ledger": {"record", "store"},
    "sinks": {"record"},
    "findings": {"record", "store", "intervals"},
    "report": {"record", "store", "ledger", "findings"},
    # model: imported when a patch is made, not before
    "run": {"record", "store", "ledger", "findings", "report", "model"},
    # model: imported when runs have kept weights, not before
    "comparison": {"record", "store", "findings", "report", "run", "model"},
    "session": _BEHIND_SESSIONS,
    "analysis": {*_BEHIND_SESSIONS, "session"},
    "telemetry": {*_BEHIND_SESSIONS, "session", "report"},
    "dynamics": {*_BEHIND_SESSIONS, "session", "findings", "report"},
    "trackers": {*_BEHIND_SESSIONS, "session", "findings", "report"},
    "posttrain": {*_BEHIND_SESSIONS, "session", "findings", "report", "sources", "intervals"},
    "training": {*_BEHIND_SESSIONS, "session", "findings", "report", "trackers", "quiet", "sources", "__init__"},
    "demo": {"*"},
    "cli": {"*"},
    "__init__": {"*"},
}
TORCH_FREE = {
    "options", "arguments", "progress", "record", "intervals", "store", "sinks", "findings", "report", "run",
    "comparison", "ledger", "sources", "allocation", "sensitivities",
}  # fmt: skip
LINES = 300
TORCH_FILES = {"rolling.py", "tracker_file.py"}
"""What writes files that other programs read with torch.load: tensors, names and numbers, safe with weights_only."""


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Every absolute name that a file imports, also inside functions and for type checking only."""
    found: list[str] = []
    package = ["learnscope", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_import_only_what_they_may(path: Path) -> None:
    room = room_of(path)
    assert room in ROOMS, f"{room} is a new room: say what it may import"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "torch":
            assert room not in TORCH_FREE, f"{path.name} imports torch, which must not be needed to read a run"
        if parts[0] != "learnscope":
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        if target not in ROOMS:
            target = "__init__"  # a public name
        allowed = ROOMS[room] | {room}
        assert "*" in allowed or target in allowed, f"{room} may not import {target} ({name})"


def test_the_rooms_have_no_cycle_but_the_one_of_types() -> None:
    """`probing` names the moment in its annotations only; everything else goes one way."""
    order: list[str] = []
    left = {room: {r for r in needs if r != "*"} for room, needs in ROOMS.items()}
    left["probing"].discard("moment")
    while left:
        ready = [room for room, needs in left.items() if needs <= set(order)]
        assert ready, f"a cycle among {sorted(left)}"
        order += ready
        for room in ready:
            del left[room]
    tree = ast.parse((SOURCE / "probing.py").read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    inside = [n.module for node in guarded for n in ast.walk(node) if isinstance(n, ast.ImportFrom)]
    assert inside == ["learnscope.moment"]


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


def test_lazy_names_and_type_checkers_see_the_same() -> None:
    import learnscope

    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {
        alias.asname: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lazy = {name: f"learnscope.{home}" for name, home in learnscope._HOME_OF.items()}
    assert typed == lazy


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES, "a file this long is usually two"


def test_nothing_is_pickled() -> None:
    for path in files():
        text = path.read_text()
        assert "pickle.load" not in text, path
        assert "weights_only=False" not in text, path
        assert "torch.save(" not in text or path.name in TORCH_FILES, path
