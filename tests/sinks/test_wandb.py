"""What the sink writes offline, read back by wandb's own reader and held against the run folder."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import learnscope as ls
from learnscope.sinks.base import Opening
from learnscope.sinks.keys import Keys
from sinks.made import finding, one, record, train

wandb: Any = pytest.importorskip("wandb")


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MODE": "offline", "SILENT": "true", "CONSOLE": "off", "ERROR_REPORTING": "false"}.items():
            patch.setenv(f"WANDB_{name}", value)
        patch.setenv("WANDB_DIR", str(tmp_path_factory.mktemp("wandb")))
        wandb.teardown()  # another file's tests may have set it up, with a folder of their own
        yield
        wandb.teardown()


def read(run_id: str) -> dict[str, list[Any]]:
    """Everything in the files of a finished run, by type, in order; a busy machine may write the end late."""
    folder, last = Path(wandb.sdk.wandb_setup.singleton().settings.wandb_dir), time.monotonic() + 60
    while True:
        files = sorted(folder.glob(f"offline-run-*/run-{run_id}.wandb"))
        found = written(files)
        if 0 < len(files) <= len(found.get("exit", ())) or time.monotonic() > last:
            return found
        time.sleep(0.5)


def written(files: list[Path]) -> dict[str, list[Any]]:
    spec = find_spec("wandb")
    assert spec is not None
    assert spec.origin is not None
    core = Path(spec.origin).parent / "bin" / "wandb-core"
    found: dict[str, list[Any]] = {}
    for file in files:
        command = [str(core), "leet", "inspect", "-json", "-no-observability", "-run-file", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        for line in done.stdout.splitlines():
            body = json.loads(line)
            found.setdefault(body["type"], []).append(body[body["type"]])
    return found


def points(history: list[Any]) -> list[tuple[int, str, float]]:
    """Every number at its step."""
    rows = [entry["item"] for entry in history]
    return sorted(
        (row["learnscope/step"], key, value)
        for row in rows
        for key, value in row.items()
        if not key.startswith(("_", "learnscope/", "mine"))
    )


def expected(run: ls.Run) -> list[tuple[int, str, float]]:
    keys = Keys()
    return sorted((each.step, key, value) for each in run.records() for key, value in keys.values(each).items())


@pytest.mark.filterwarnings("ignore:no state was saved")
def test_a_real_run_reads_back_and_a_resumed_one_goes_on_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = ls.WandbSink(project="digits")
    train(6, sinks=[first], run=folder, strict=True, layers=6, nan_at=5, alerts=lambda _: None)
    attempt = ls.open_run(folder).manifest["attempts"][0]
    records = len(list(ls.open_run(folder).records()))
    run_id = first.run.id
    assert attempt["sinks"] == {"WandbSink": {"taken": records, "dropped": 0, "errors": 0, "kept": {"run_id": run_id}}}
    assert wandb.run is None, "a run of its own is not the program's"

    content = read(run_id)
    assert points(content["history"]) == expected(ls.open_run(folder))
    assert {"gradients/norm", "gradients/norm/layers-max", "outputs/loss"} <= {
        key for _, key, _ in points(content["history"])
    }
    stepped = {entry["glob_name"]: entry["step_metric"] for entry in content["metric"] if "glob_name" in entry}
    assert stepped == {f"{section}/*": "learnscope/step" for section in ("gradients", "outputs", "updates")}
    assert [(entry["level"], len(entry["title"]) < 64) for entry in content["alert"]] == [("ERROR", True)]
    told = content["run"][0]
    assert (told["project"], told["display_name"], told["run_id"]) == ("digits", "run", run_id)
    assert told["config"]["update"]["learnscope"]["model"]["class"] == "Deep"

    second = ls.WandbSink(project="digits")
    train(3, sinks=[second], run=folder, strict=True, layers=6, resume=True, step=6)
    assert second.run.id == run_id
    assert points(read(run_id)["history"]) == expected(ls.open_run(folder))


def test_a_run_that_is_open_is_written_to_and_stays_open() -> None:
    mine = wandb.init(project="mine")
    for sink in (ls.WandbSink(), ls.WandbSink(run=mine, prefix="learnscope/deep"), ls.sinks_for("wandb")[0]):
        assert sink.run is mine
        assert sink.kept == {}
        train(2, sinks=[sink], strict=True)
        mine.log({"mine": 1.0})
    with pytest.raises(ValueError, match="takes no options: leave out project"):
        ls.WandbSink(run=mine, project="other")
    mine.finish()
    history = [entry["item"] for entry in read(mine.id)["history"]]
    assert sum("mine" in row for row in history) == 3
    assert sum("outputs/loss" in row for row in history) == 4
    assert sum("learnscope/deep/outputs/loss" in row for row in history) == 2
    globs = {entry.get("glob_name") for entry in read(mine.id)["metric"]}
    assert {"outputs/*", "learnscope/deep/outputs/*"} <= globs


def test_a_loop_that_counts_wandb_s_steps_itself_keeps_its_rows() -> None:
    mine = wandb.init(project="mine")
    sink = ls.WandbSink(run=mine, own_rows=False)
    sink.open(Opening())
    for step in range(1, 4):
        mine.log({"mine": step}, step=step)
        sink.write(record(step, one("x", 10.0 * step)))
        sink.write(record(step, one("y", 1.0)))
    sink.alert(finding(title="A title of more than sixty-three characters, which is all that wandb takes"))
    sink.close()
    mine.finish()
    rows = [entry["item"] for entry in read(mine.id)["history"]]
    assert [(row["_step"], row["mine"], row["P/x"]) for row in rows] == [(1, 1, 10.0), (2, 2, 20.0), (3, 3, 30.0)]
