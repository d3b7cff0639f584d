"""Run folders with one thing wrong in them: made from a sound one, each by a seed."""

from __future__ import annotations

import json
import math
import random
import shutil
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import learnscope as ls
from learnscope.store.columnar import catalog, index

STEPS, SAVED = 8, 4
"""The second attempt starts from the step `SAVED`: what the first recorded after it is superseded."""


@ls.probe(every=1)
def failing(moment: Any) -> dict[str, float]:
    if moment.step == 3:
        raise ValueError("a probe that fails")
    return {"number": math.nan if moment.step == 2 else 1.0}


class Loop:
    """A training loop and its session, which may be resumed; the same probes each time."""

    def __init__(self, folder: Path, **resume: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.x, self.y = torch.randn(24, 6), torch.randint(3, (24,))
        probes = [ls.GradientFlow(every=2), ls.ParameterChange(every=4, thresholds=(1e-6,)), ls.Loss(), failing]
        probes += [ls.LearningRate(every=4), ls.Holdout(every=4)]
        probes += [ls.ExampleLedger(every=1, show=[*["a text"] * 12, *torch.rand(12, 3, 4)])]
        data = [(self.x, self.y)]
        self.session = ls.watch(self.model, self.optimizer, run=folder, probes=probes, holdout=data, **resume)

    def train(self, steps: int) -> None:
        with self.session as w:
            while w.steps < steps:
                logits = self.model(self.x)
                loss = torch.nn.functional.cross_entropy(logits, self.y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                w.log(loss=loss)
                w.examples(torch.arange(24), logits, self.y)
                if w.steps % SAVED == 0:
                    w.end_epoch()
                    w.save_state()


def sound_run(folder: Path) -> Path:
    """A small run with every kind of file and line: two attempts, an error, a number that is not finite, arrays, a
    ledger, shown examples, states, an index of the lines, findings and a report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ls.ProbeWarning)
        Loop(folder).train(SAVED + 2)
        Loop(folder, resume=True, step=SAVED).train(STEPS)
    with pytest.MonkeyPatch.context() as patch:  # a run as short as this has no index
        patch.setattr(index, "WORTH_KEEPING", 1)
        ls.open_run(folder).page()
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


def changed_catalog(path: Path, chance: random.Random) -> None:
    """Strange content with the right check sum."""
    text = changed_json(path.read_text().partition("\n")[2], chance)
    path.write_text(f"{zlib.crc32(text.encode())}\n{text}")


def replaced(path: Path, chance: random.Random) -> None:
    """A folder, a broken link or nothing in place of a file."""
    path.unlink()
    kind = chance.randrange(3)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to("/nowhere/at/all")


WEIGHT = {"records.jsonl": 8, "run.json": 8, "catalog.json": 3}
"""How often a file is damaged, other files 1."""
Damage = Callable[[Path, random.Random], None]


def corrupt(folder: Path, seed: int) -> str:
    """One damage to one file, by the seed; what was done."""
    chance = random.Random(seed)
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and "report" not in path.relative_to(folder).parts
    )
    weighted = [path for path in files for _ in range(WEIGHT.get(path.name, 1))]
    path = chance.choice(weighted)
    ways: list[Damage] = [changed_file, replaced]
    if path.suffix == ".jsonl":
        ways += [changed_line] * 12
    if path.name in ("run.json", "findings.json", "shown.json"):
        ways += [lambda p, c: void(p.write_text(changed_json(p.read_text(), c)))] * 12
    if path.name == catalog.CATALOG:
        ways += [changed_catalog] * 4
    way = chance.choice(ways)
    way(path, chance)
    return f"{path.relative_to(folder)} by {getattr(way, '__name__', 'changed_json')} (seed {seed})"


def void(_: object) -> None:
    return None


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target
