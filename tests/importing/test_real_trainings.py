"""Real trainings, recorded by TensorBoard, wandb and a table: their numbers, findings, page, comparison and query."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import learnscope as ls
from importing.trainings import Training

SOURCES = ("wandb", "board", "table")
NAMES = {
    "train/loss": ("Loss", "loss", "losses"),
    "val/loss": ("Holdout", "holdout_loss", "held_out"),
    "val/accuracy": ("Holdout", "holdout_accuracy", "accuracies"),
    "lr": ("LearningRate", "learning_rate", "rates"),
    "grad_norm": ("GradientFlow", "norm", "norms"),
}


def numbers(run: ls.Run, probe: str, name: str) -> dict[int, float]:
    """By step; what is not finite as the number that its status names."""
    frame = run.frame(probe, name)
    missing = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
    return {
        int(row.step): float(row.value) if isinstance(row.status, float) or row.status is None else missing[row.status]
        for row in frame.itertuples()
    }


def same(ours: dict[int, float], theirs: dict[int, float]) -> bool:
    """Equal bit for bit."""
    return list(ours) == list(theirs) and np.array_equal([*ours.values()], [*theirs.values()], equal_nan=True)


@pytest.fixture(scope="module")
def imported(trainings: dict[str, Training], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], ls.Run]:
    out = tmp_path_factory.mktemp("imported")
    return {
        (kind, source): ls.import_run(getattr(training, source), out / f"{kind}-{source}")
        for kind, training in trainings.items()
        for source in SOURCES
    }


@pytest.mark.parametrize("kind", ["healthy", "overfitting", "diverging"])
def test_every_number_is_the_one_that_was_logged(
    kind: str, trainings: dict[str, Training], imported: dict[tuple[str, str], ls.Run]
) -> None:
    training = trainings[kind]
    for probe, name, logged in NAMES.values():
        said = getattr(training, logged)
        for source in ("wandb", "table"):
            assert same(numbers(imported[kind, source], probe, name), said), (source, name)
    own = {step: 100.0 + step % 7 for step in range(1, 201)}
    assert all(same(numbers(imported[kind, source], "Loss", "speed"), own) for source in SOURCES)


@pytest.mark.parametrize("kind", ["healthy", "diverging"])
def test_every_number_of_event_files_is_the_one_that_tensorboard_itself_reads(
    kind: str, trainings: dict[str, Training], imported: dict[tuple[str, str], ls.Run]
) -> None:
    board = EventAccumulator(str(trainings[kind].board), size_guidance={"scalars": 0, "tensors": 0})
    board.Reload()
    run = imported[kind, "board"]
    assert set(board.Tags()["scalars"]) == {*NAMES, "speed"}
    for tag in board.Tags()["scalars"]:
        probe, name, _ = NAMES.get(tag, ("Loss", tag, ""))
        events = board.Scalars(tag)
        assert same(numbers(run, probe, name), {event.step: event.value for event in events}), tag
        times = run.frame(probe, name)["time"].to_numpy()
        # a record has one time, the last of its values'
        assert (times >= np.array([event.wall_time for event in events]) - 1e-5).all()
        assert np.abs(times - np.array([event.wall_time for event in events])).max() < 1


def test_what_the_trainings_suffer_from_is_found_and_a_healthy_one_is_quiet(
    imported: dict[tuple[str, str], ls.Run], trainings: dict[str, Training]
) -> None:
    for source in SOURCES:
        found = {kind: imported[kind, source].findings() for kind in trainings}
        assert not [f for f in found["healthy"] if f.severity != "info"], (source, found["healthy"])
        assert [f.kind for f in found["overfitting"] if f.severity != "info"] == ["overfitting"], source
        kinds = {f.kind: f.severity for f in found["diverging"]}
        assert kinds["nonfinite"] == "critical", source
        native = ls.open_run(trainings["overfitting"].native).findings()
        ours, theirs = (next(f for f in each if f.kind == "overfitting") for each in (found["overfitting"], native))
        assert ours.title == theirs.title, "the same numbers are told in the same words"


def test_a_loss_that_rises_and_stays_up_is_found_before_it_is_not_finite(
    trainings: dict[str, Training], tmp_path: Path
) -> None:
    lines = trainings["diverging"].table.read_text().splitlines(keepends=True)
    (tmp_path / "cut.csv").write_text("".join(lines[:200]))
    found = {finding.kind: finding.severity for finding in ls.import_run(tmp_path / "cut.csv").findings()}
    assert found["diverging"] == "critical"


def test_what_the_source_lacks_was_not_measured(imported: dict[tuple[str, str], ls.Run]) -> None:
    run = imported["healthy", "wandb"]
    states = {check.name: check for check in run.checks()}
    for name in (
        "overfitting",
        "divergence of the loss",
        "spikes of the loss",
        "learning rate of 0",
        "NaN and infinity",
    ):
        assert states[name].state == "passed", name
    # a norm of the whole model tells nothing about layers, and nothing describes the model or the optimizer
    for name in (
        "exploding gradients", "clipping", "gradients that are zero or never come", "momentum", "strength of dropout",
        "learning rates of groups", "guessing on the holdout",
    ):  # fmt: skip
        assert states[name].state == "not measured", name
    assert "of each layer" in states["exploding gradients"].reason
    assert "holdout_examples" in states["guessing on the holdout"].reason


def test_a_page_and_a_report_are_written(imported: dict[tuple[str, str], ls.Run], tmp_path: Path) -> None:
    run = imported["overfitting", "wandb"]
    assert run.page(tmp_path / "page").stat().st_size > 50_000
    text = run.report(tmp_path / "text").read_text()
    assert "train/loss is Loss.loss" in text
    assert "Overfitting" in text


def test_it_is_compared_with_a_native_run(
    imported: dict[tuple[str, str], ls.Run], trainings: dict[str, Training]
) -> None:
    training, run = trainings["healthy"], imported["healthy", "wandb"]
    assert run.path is not None
    comparison = ls.compare([training.native, run.path])
    curve = comparison.curve("loss")
    assert len(curve) == 200
    first, second = curve.to_numpy().T
    assert np.array_equal(first, second)
    keys = {difference.key for difference in comparison.differences}
    assert "config.kind" in keys
    assert not any(key.startswith("imported") for key in keys)


def test_a_query_reads_all_of_them(imported: dict[tuple[str, str], ls.Run], trainings: dict[str, Training]) -> None:
    folders = [run.path for run in imported.values() if run.path is not None]
    answer = ls.query("select run, count(*) n, min(value) low from records where name = 'loss' group by run", folders)
    assert len(answer) == 9
    row = answer[answer["run"].str.contains("healthy-wandb")].iloc[0]
    assert row.low == min(trainings["healthy"].losses.values())


def test_run_json_says_where_it_comes_from_and_what_became_what(
    imported: dict[tuple[str, str], ls.Run], trainings: dict[str, Training]
) -> None:
    run = imported["healthy", "wandb"]
    body = run.manifest
    assert body["source"] == "import"
    assert body["status"] == "finished"
    assert body["config"] == {"kind": "healthy", "api_key": "[redacted]"}
    became = {entry["name"]: entry["became"] for entry in body["imported"]["names"]}
    assert became["val/loss"] == "Holdout.holdout_loss"
    assert became["grad_norm"] == "GradientFlow.norm (stage=before_clip)"
    assert became["speed"] == "kept under its own name"
    started = body["attempts"][0]["started"]
    assert abs(started - ls.open_run(trainings["healthy"].native).manifest["created"]) < 60
    assert body["created"] == started
    assert imported["healthy", "board"].manifest["status"] is None, "event files do not say how it ended"
    json.dumps(body, allow_nan=False)


def test_reading_needs_no_torch_and_moves_no_random_generator(trainings: dict[str, Training], tmp_path: Path) -> None:
    sources = [str(getattr(trainings["healthy"], source)) for source in SOURCES]
    program = f"""
import random, sys
import numpy as np
import learnscope as ls
before = random.getstate(), np.random.get_state()[1].tolist()
for place, source in enumerate({sources!r}):
    assert ls.import_run(source, {str(tmp_path)!r} + f"/{{place}}").last_step == 200
print("torch" in sys.modules or before != (random.getstate(), np.random.get_state()[1].tolist()))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "False", result.stderr
