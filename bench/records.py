"""What reading a run costs as it grows: opening it, its findings and report, its table, SQL over it, and compacting it.

    python bench/records.py [--quick] [--runs 5] [--records 1000000] [--growth 10000000]

The lines are written in the store's own format, as a watched loop leaves them: at every step a loss, the learning rates
of two groups, and gradient norms with labels, a status and a few layers; and a second run of 10⁵ steps with the probes
of a real session, whose lines are repeated with other steps and numbers. A first reading parses the lines and leaves an
index; `again` is what every later one costs. Reading takes turns with `pyarrow.json.read_json`, which parses the same
file and leaves it nested: the limit of what has to parse. Memory is that of a fresh process, at its peak. Growth is the
exponent of a power of the number of records, fitted to the first reading and to the findings.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.json as arrow_json  # type: ignore[import-untyped]
from tools.claims import Claim, keep, show

import learnscope as ls
from learnscope.store.compact import compact

SQL = "select probe, name, labels['stage'] as stage, count(*) as n, avg(value) as mean from records group by all"
STEPS = 100_000


def write_run(folder: Path, lines: Iterator[str], **manifest: Any) -> Path:
    folder.mkdir(parents=True)
    body = {"schema": 1, "source": "watch", "status": "finished", "attempts": [{"attempt": 0, "start_step": 0}]}
    (folder / "run.json").write_text(json.dumps({**body, **manifest}))
    with (folder / "records.jsonl").open("w") as file:
        file.writelines(lines)
    return folder


def plain_lines(records: int) -> Iterator[str]:
    """Written by hand, since a million firings of real probes would take an hour."""
    rng = random.Random(0)
    tables = (
        lambda: ("Loss", "after_step", '{"kind":"model","scopes":["model"],"columns":['
                 f'{{"name":"loss","values":[{rng.random()}]}}]}}'),
        lambda: ("LearningRate", "before_step", '{"kind":"group","scopes":["group_0","group_1"],"columns":['
                 f'{{"name":"learning_rate","values":[{rng.random() * 1e-3},{rng.random() * 1e-3}]}},'
                 '{"name":"weight_decay","values":[0.01,0.0]}]}'),
        lambda: ("GradientFlow", "before_step", '{"kind":"model","scopes":["model"],"columns":['
                 f'{{"name":"norm","values":[{rng.random()}],"labels":{{"stage":"before_clip"}}}},'
                 f'{{"name":"norm","values":[{rng.random()}],"labels":{{"stage":"stepped"}}}},'
                 '{"name":"noise_scale","values":[null],"status":{"0":"one micro-batch"}}]},'
                 '{"kind":"layer","scopes":["h.0","h.1","head"],"columns":[{"name":"norm","values":['
                 f'{rng.random()},{rng.random()},{rng.random()}],"labels":{{"stage":"stepped"}}}}]}}'),
    )  # fmt: skip
    for i in range(records):
        probe, phase, table = tables[i % 3]()
        step = i // 3 + 1
        yield (
            f'{{"probe":"{probe}","step":{step},"epoch":{step // 1000},"phase":"{phase}","source":"watch","attempt":0,'
            f'"time":{round(1.7e9 + i / 100, 6)},"cost":{round(rng.random() * 1e-3, 7)},"tables":[{table}]}}\n'
        )


def session_run(folder: Path, steps: int) -> Path:
    """The run of a real session of 300 steps with its default probes, its lines repeated to so many steps."""
    import torch

    torch.manual_seed(0)
    real = folder.with_name(f"{folder.name}-session")
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    )
    optimizer = torch.optim.Adam(model.parameters())
    with ls.watch(model, optimizer, run=real) as w:
        for _ in range(300):
            loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 4, (16,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    bodies = [json.loads(line) for line in (real / "records.jsonl").read_text().splitlines()]
    manifest = json.loads((real / "run.json").read_text())
    manifest["attempts"][0].pop("records", None)
    return write_run(folder, repeated(bodies, steps), **manifest)


def repeated(bodies: list[dict[str, Any]], steps: int) -> Iterator[str]:
    for first in range(0, steps, 300):
        for body in bodies:
            moved = {**body, "step": body["step"] + first, "time": body["time"] + first / 1000}
            if "span" in body.get("notes", {}):
                moved["notes"] = {**body["notes"], "span": [step + first for step in body["notes"]["span"]]}
            yield json.dumps(moved, separators=(",", ":")) + "\n"


ALONE = """
import sys, time
import learnscope as ls
import learnscope.findings, learnscope.report.markdown
run = ls.open_run(sys.argv[1])
start = time.process_time()
{"last_step": lambda: run.last_step, "findings": run.findings, "report": lambda: run.report(sys.argv[3])}[sys.argv[2]]()
seconds = time.process_time() - start
# not getrusage, whose peak a process inherits from the one that started it
peak = next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, peak, time.process_time())
"""


def alone(folder: Path, work: str) -> tuple[float, float, float]:
    """Processor seconds and peak MiB of a piece of work in a process of its own, and all seconds of that process."""
    with tempfile.TemporaryDirectory() as target:
        command = [sys.executable, "-c", ALONE, str(folder), work, target]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-3:]
    seconds, peak, whole = map(float, printed)
    return seconds, peak, whole


def forget(folder: Path) -> None:
    shutil.rmtree(folder / "index", ignore_errors=True)


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def reading(folder: Path, name: str, runs: int, bounds: dict[str, float]) -> list[Claim]:
    """The first reading, and each piece of work with the index that it leaves."""
    path = folder / "records.jsonl"
    limit, first = [], []
    for _ in range(runs):
        limit.append(timed(lambda: arrow_json.read_json(path)))
        forget(folder)
        first.append(timed(lambda: ls.open_run(folder).last_step))
    parse = statistics.median(limit)
    claims = [Claim(f"{name}: first reading", first, limit=parse, unit="s")]
    for work, bound in bounds.items():
        figures = [alone(folder, work) for _ in range(runs)]
        claims.append(Claim(f"{name}: {work}", [seconds for seconds, _, _ in figures], bound, unit="s"))
        claims.append(Claim(f"{name}: {work}, peak", [peak for _, peak, _ in figures], 500, unit="MiB"))
    return claims


def compacting(place: Path, folder: Path, runs: int) -> list[Claim]:
    times, sizes = [], []
    for number in range(runs):
        copy = Path(shutil.copytree(folder, place / f"compacted-{number}", ignore=shutil.ignore_patterns("index")))
        start = time.process_time()
        info = compact(copy)
        times.append(time.process_time() - start)
        sizes.append(info.bytes_after / info.bytes_before)
        if number < runs - 1:
            shutil.rmtree(copy)
    ratios = [timed(lambda: ls.query(SQL, copy)) for _ in range(runs)]
    answers = [ls.query(f"{SQL} order by all", each).drop(columns="mean") for each in (folder, copy)]
    assert answers[0].equals(answers[1])
    return [
        Claim("compacting, and comparing every record", times, 15.0, unit="s"),
        Claim("Parquet / JSON lines, bytes", sizes, 0.2),
        Claim("SQL over Parquet", ratios, unit="s"),
    ]


def growth(place: Path, sizes: list[int], runs: int) -> list[Claim]:
    """The exponent of each round: the slope of a line through the logarithms."""
    folders = [write_run(place / f"growth-{size}", plain_lines(size)) for size in sizes]
    first, findings = [], []
    for _ in range(runs):
        of_first, of_findings = [], []
        for folder in folders:
            forget(folder)
            of_first.append(timed(lambda folder=folder: ls.open_run(folder).last_step))
            of_findings.append(timed(lambda folder=folder: ls.open_run(folder).findings()))
        first.append(slope(sizes, of_first))
        findings.append(slope(sizes, of_findings))
    to = f"{sizes[0]:,} to {sizes[-1]:,} records"
    return [
        Claim("growth of the first reading, exponent", first, 1.05, limit=1.0, note=to),
        Claim("growth of findings, exponent", findings, 1.05, limit=1.0, note=to),
    ]


def slope(sizes: list[int], seconds: list[float]) -> float:
    x, y = [math.log(size) for size in sizes], [math.log(second) for second in seconds]
    return float(statistics.linear_regression(x, y).slope)


def measure(place: Path, options: argparse.Namespace) -> list[Claim]:
    records, runs = (3000, 1) if options.quick else (options.records, options.runs)
    steps = 600 if options.quick else STEPS
    many = write_run(place / "many", plain_lines(records))
    claims = reading(many, f"{records:,} records", runs, {"last_step": 0.1, "findings": 15.0, "report": 20.0})
    frame = [timed(lambda: ls.open_run(many).frame()) for _ in range(runs)]
    claims.append(Claim(f"{records:,} records: table", frame, unit="s"))
    claims += compacting(place, many, runs)
    long = session_run(place / "long", steps)
    claims += reading(long, f"{steps:,} steps with default probes", runs, {"report": 5.0})
    small = [alone(place / "long-session", "report") for _ in range(runs)]
    claims.append(Claim("report of a run of 300 steps", [seconds for seconds, _, _ in small], 1.0, unit="s"))
    claims.append(Claim("report of a run of 300 steps, with all imports", [whole for _, _, whole in small], unit="s"))
    top = 3000 if options.quick else options.growth or records // 3
    return claims + growth(place, [max(top // 100, 30), max(top // 10, 300), top], runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few records: does it run, not how fast it is")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--growth", type=int, help="records up to which growth is fitted, such as 10000000")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        claims = measure(Path(place), options)
    held = show(claims)
    if options.quick:
        return 0
    keep("records", claims)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
