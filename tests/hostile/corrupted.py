"""Run folders with one thing wrong in them: made from a sound one, each by a seed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import learnscope as ls

STEPS = 12


def sound_run(folder: Path) -> Path:
    """A small run with every kind of file: lines, arrays, a ledger, shown examples, a state, findings."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, y = torch.randn(24, 6), torch.randint(3, (24,))
    probes = [ls.GradientFlow(every=2), ls.ParameterChange(every=3), ls.Loss(), ls.LearningRate(every=4)]
    probes += [ls.Holdout(every=4), ls.ExampleLedger(every=1, show=[*["a text"] * 12, *torch.rand(12, 3, 4)])]
    with ls.watch(model, optimizer, run=folder, probes=probes, holdout=[(x, y)]) as w:
        for step in range(STEPS):
            logits = model(x)
            loss = torch.nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            w.examples(torch.arange(24), logits, y)
            if step % 4 == 3:
                w.end_epoch()
        w.save_state()
    ls.open_run(folder).report()
    return folder


STRANGE: list[Any] = [
    None, True, -1, 0, 10**30, -(10**30), 1e308, -0.0, "", "x", "1", "é\u202e", [], [[]], {}, {"a": 1}, [None],
    [1, "a"], [[1, 2], [3]], {"": None},
]  # fmt: skip


def places(body: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON body."""
    inside = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    return [path, *(deeper for key, value in inside for deeper in places(value, (*path, key)))]


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    parent = body
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return body


def drop(body: Any, path: tuple[Any, ...]) -> Any:
    parent = body
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return body


def changed_json(text: str, chance: random.Random) -> str:
    """A JSON text with one value exchanged, removed, doubled in depth, or written as no JSON at all."""
    body = json.loads(text)
    spots = [path for path in places(body) if path]
    if not spots:
        return "null"
    path = chance.choice(spots)
    kind = chance.randrange(6)
    if kind == 0:
        return json.dumps(drop(body, path))
    if kind == 1:
        return json.dumps(put(body, path, "DEEP")).replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
    if kind == 2:
        return json.dumps(put(body, path, "NAN")).replace(
            '"NAN"', chance.choice(["NaN", "Infinity", "1e999", "-1E+400"])
        )
    return json.dumps(put(body, path, chance.choice(STRANGE)))


def changed_line(path: Path, chance: random.Random) -> None:
    lines = path.read_text().splitlines()
    at = chance.randrange(len(lines))
    kind = chance.randrange(5)
    if kind == 0:
        lines[at] = chance.choice(["null", "[]", "1", '"x"', "{}", "\x00\x00", "{", '{"probe":', "\ufeff{}"])
    elif kind == 1:
        lines.insert(at, lines[at])
    else:
        lines[at] = changed_json(lines[at], chance)
    path.write_text("\n".join(lines) + "\n")


def changed_file(path: Path, chance: random.Random) -> None:
    """Some bytes of a file: flipped, cut off, emptied, or another file's."""
    data = bytearray(path.read_bytes())
    kind = chance.randrange(5)
    if kind == 0:
        data = data[: chance.randrange(len(data) + 1)]
    elif kind == 1 and data:
        for _ in range(chance.randrange(1, 9)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == 2 and data:  # the beginning, where headers and lengths are
        data[chance.randrange(min(16, len(data)))] ^= 1 << chance.randrange(8)
    elif kind == 3 and data:  # the end, where Parquet has its own
        data[-1 - chance.randrange(min(64, len(data)))] ^= 1 << chance.randrange(8)
    else:
        data = bytearray(chance.randbytes(chance.randrange(200)))
    path.write_bytes(data)


def replaced(path: Path, chance: random.Random) -> None:
    """A folder, a broken link or nothing in place of a file."""
    path.unlink()
    kind = chance.randrange(3)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to("/nowhere/at/all")


Damage = Callable[[Path, random.Random], None]


def corrupt(folder: Path, seed: int) -> str:
    """One damage to one file, by the seed; what was done."""
    chance = random.Random(seed)
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and "report" not in path.relative_to(folder).parts
    )
    weighted = [path for path in files for _ in range(8 if path.name in ("records.jsonl", "run.json") else 1)]
    path = chance.choice(weighted)
    ways: list[Damage] = [changed_file, replaced]
    if path.suffix == ".jsonl":
        ways += [changed_line] * 12
    if path.name in ("run.json", "findings.json", "shown.json"):
        ways += [lambda p, c: void(p.write_text(changed_json(p.read_text(), c)))] * 12
    way = chance.choice(ways)
    way(path, chance)
    return f"{path.relative_to(folder)} by {getattr(way, '__name__', 'changed_json')} (seed {seed})"


def void(_: object) -> None:
    return None


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target
