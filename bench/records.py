"""What reading a run of a million records costs: its table, SQL over it, and compacting it.

    python bench/records.py [--quick] [--repeats 3]

The run has what a watched loop leaves behind: at every step a loss, the learning rates of two groups, and gradient
norms with labels, a status and a few layers. The table (`run.frame()`) takes turns with `pyarrow.json.read_json`, which
parses the same file and leaves it nested. Memory is that of a fresh process, at its peak, beyond what it holds once the
packages are imported. Figures are medians.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.json as arrow_json  # type: ignore[import-untyped]
from tools.figures import interleaved, peak_beyond_now, report, save

import learnscope as ls
from learnscope.store.compact import compact

BOUNDS = {
    "table / read_json": 5.0,
    "SQL over JSON lines, MiB": 192.0,  # of a file of 371 MiB: it is not loaded
    "SQL over Parquet, MiB": 192.0,
    "Parquet / JSON lines, bytes": 0.2,
}
RECORDS = 1_000_000
SQL = "select probe, name, labels['stage'] as stage, count(*) as n, avg(value) as mean from records group by all"


def write_run(folder: Path, records: int) -> None:
    """Written by hand, since a million firings of real probes would take an hour."""
    folder.mkdir(parents=True)
    manifest = {"schema": 1, "source": "watch", "status": "finished", "attempts": [{"attempt": 0, "start_step": 0}]}
    (folder / "run.json").write_text(json.dumps(manifest))
    with (folder / "records.jsonl").open("w") as file:
        file.writelines(lines(records))


def lines(records: int) -> Iterator[str]:
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


def sql_memory(folder: Path) -> float:
    """Peak resident memory of an aggregate over all numbers of a run."""
    ls.query("select 1", folder)  # imports what is needed
    return peak_beyond_now(lambda: ls.query(SQL, folder))


def measured_alone(folder: Path) -> float:
    command = [sys.executable, __file__, "--memory", str(folder)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def measure(place: Path, records: int, repeats: int) -> dict[str, float]:
    lines_run, compacted = place / "lines", place / "compacted"
    write_run(lines_run, records)
    path = lines_run / "records.jsonl"
    run = ls.open_run(lines_run)
    times = interleaved(
        {
            "read_json": lambda: arrow_json.read_json(path),
            "table": lambda: run.frame(),
            "SQL over JSON lines": lambda: ls.query(SQL, lines_run),
        },
        repeats,
    )
    figures = {f"{name}, s": statistics.median(each) for name, each in times.items()}
    figures["table / read_json"] = figures["table, s"] / figures["read_json, s"]
    figures["SQL over JSON lines, MiB"] = measured_alone(lines_run)
    figures["JSON lines, MiB"] = path.stat().st_size / 2**20
    shutil.copytree(lines_run, compacted)
    start = time.perf_counter()
    info = compact(compacted)
    figures["compacting and comparing, s"] = time.perf_counter() - start
    figures["Parquet / JSON lines, bytes"] = info.bytes_after / info.bytes_before
    assert info.records == records
    run = ls.open_run(compacted)
    times = interleaved({"table": lambda: run.frame(), "SQL": lambda: ls.query(SQL, compacted)}, repeats)
    figures |= {f"{name} over Parquet, s": statistics.median(each) for name, each in times.items()}
    figures["SQL over Parquet, MiB"] = measured_alone(compacted)
    answers = [ls.query(f"{SQL} order by all", folder) for folder in (lines_run, compacted)]
    assert answers[0].drop(columns="mean").equals(answers[1].drop(columns="mean"))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few records: does it run, not how fast it is")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory is not None:
        print(sql_memory(Path(options.memory)))
        return 0
    with tempfile.TemporaryDirectory() as place:
        records = 15_000 if options.quick else RECORDS
        figures = measure(Path(place), records, 1 if options.quick else options.repeats)
    held = report(figures, BOUNDS)
    if options.quick:
        return 0
    save("records", figures, BOUNDS, records=RECORDS)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
