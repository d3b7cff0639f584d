"""Trainings whose records go to MLflow or Trackio, in an environment that has them, as a program.

    python tracked.py mlflow|trackio FOLDER

Prints as JSON what was recorded and what the tool's own reader reads back.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

Points = list[tuple[int, str, float]]


def generators() -> str:
    states = repr(random.getstate()) + repr(np.random.get_state()[1].tobytes()) + repr(torch.get_rng_state().tolist())
    return hashlib.sha256(states.encode()).hexdigest()


def recorded(run: Any) -> Points:
    from learnscope.sinks.keys import Keys

    keys = Keys()
    return sorted((each.step, key, value) for each in run.records() for key, value in keys.values(each).items())


def twice(make: Any, folder: Path) -> dict[str, Any]:
    """A training that breaks, with alerts, and one that goes on from it; in the second the sink is made anew."""
    import learnscope as ls
    from sinks.made import train

    train(6, layers=6, strict=True)
    unwatched = generators()
    sink = make()
    train(6, layers=6, run=folder / "run", sinks=[sink], nan_at=5, alerts=lambda _: None, strict=True)
    as_unwatched = generators() == unwatched
    again = make()
    train(4, layers=6, run=folder / "run", sinks=[again], resume=True, step=6, strict=True)
    run = ls.open_run(folder / "run")
    accounts = [attempt["sinks"] for attempt in run.manifest["attempts"]]
    return {"recorded": recorded(run), "accounts": accounts, "as_unwatched": as_unwatched}


def with_mlflow(folder: Path) -> dict[str, Any]:
    import learnscope as ls
    from sinks.made import finding, one, record

    uri = f"sqlite:///{folder}/mlflow.db"
    made = twice(lambda: ls.MLflowSink(tracking_uri=uri, experiment="digits"), folder)
    import mlflow

    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    history = [client.get_metric_history(run.info.run_id, key) for key in run.data.metrics]
    points = sorted((metric.step, metric.key, metric.value) for metrics in history for metric in metrics)
    alerts = {key: value for key, value in run.data.tags.items() if key.startswith("learnscope.alert.")}

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("mine")
    with mlflow.start_run() as mine:
        for sink in [ls.MLflowSink(), *ls.sinks_for(["mlflow", mine])]:
            sink.write(record(1, one("x", 0.5)))
            sink.alert(finding("spike"))  # type: ignore[attr-defined]
            sink.close()
        open_still = client.get_run(mine.info.run_id).info.status
        mlflow.log_metric("mine", 1.0)
    attached = client.get_run(mine.info.run_id).data.metrics
    status = run.info.status
    return {**made, "read": points, "alerts": alerts, "name": run.info.run_name, "status": status,
            "params": run.data.params, "attached": attached, "open_still": open_still}  # fmt: skip


def with_trackio(folder: Path) -> dict[str, Any]:
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    import learnscope as ls
    from sinks.made import finding, one, record

    made = twice(lambda: ls.TrackioSink(project="digits"), folder)
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = trackio.Api().runs("digits")
    logs = SQLiteStorage.get_logs("digits", run.name)
    points = sorted(
        (row["step"], key, value) for row in logs for key, value in row.items() if key not in ("step", "timestamp")
    )
    alerts = {alert["title"]: [alert["level"], alert["step"]] for alert in trackio.Api().alerts("digits")}
    mine = trackio.init(project="mine", name="mine", embed=False, auto_log_cpu=False, auto_log_gpu=False)
    for sink in [ls.TrackioSink(), *ls.sinks_for(["trackio", mine])]:
        sink.write(record(1, one("x", 0.5)))
        sink.alert(finding("spike"))  # type: ignore[attr-defined]
        sink.close()
    mine.log({"mine": 1.0})
    trackio.finish()
    attached = [sorted(row) for row in SQLiteStorage.get_logs("mine", "mine")]
    return {**made, "read": points, "alerts": alerts, "name": run.name, "config": run.config, "attached": attached}


def main(tool: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    random.seed(1), np.random.seed(2)
    found = {"mlflow": with_mlflow, "trackio": with_trackio}[tool](Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
