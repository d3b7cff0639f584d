"""Event files: several in a folder, restarts, folders inside, torn and damaged records, what is no scalar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import learnscope as ls


def write(folder: Path, values: dict[str, dict[int, float]], **options: int) -> Path:
    """Returns the event file."""
    before = set(folder.glob("*tfevents*"))
    with SummaryWriter(str(folder), **options) as writer:
        for step in sorted({step for curve in values.values() for step in curve}):
            for name, curve in values.items():
                if step in curve:
                    writer.add_scalar(name, curve[step], step)
    return next(iter(set(folder.glob("*tfevents*")) - before))


def of(run: ls.Run, name: str, probe: str = "Loss", **options: bool) -> dict[int, float]:
    frame = run.frame(probe, name, **options)
    assert options or not frame["step"].duplicated().any()
    return dict(zip(frame["step"].tolist(), frame["value"].tolist(), strict=True))


def level(steps: range, value: float) -> dict[int, float]:
    return dict.fromkeys(steps, value)


def test_a_restart_in_another_file_supersedes_what_came_after_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"train/loss": level(range(1, 101), 1.0), "eval/loss": {50: 3.0, 100: 3.0}, "epoch": {1: 0, 2: 1, 3: 2}},
    )
    write(tmp_path, {"train/loss": level(range(61, 121), 2.0), "eval/loss": {100: 4.0}, "epoch": {2: 1, 3: 2}})
    run = ls.import_run(tmp_path)
    assert of(run, "loss") == level(range(1, 61), 1.0) | level(range(61, 121), 2.0)
    assert of(run, "holdout_loss", "Holdout") == {50: 3.0, 100: 4.0}
    assert [entry["start_step"] for entry in run.manifest["attempts"]] == [0, 60], "an epoch is no step to restart from"
    assert len(run.frame("Loss", "loss", superseded=True)) == 160


def test_a_writer_that_says_what_to_purge_is_believed(tmp_path: Path) -> None:
    write(tmp_path, {"loss": level(range(10), 1.0)})
    write(tmp_path, {"loss": level(range(5, 8), 2.0)}, purge_step=4)
    board = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    board.Reload()
    assert of(ls.import_run(tmp_path), "loss") == {event.step: event.value for event in board.Scalars("loss")}


def test_steps_that_fall_again_and_again_are_refused_or_numbered(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for epoch in range(30):
            for batch in range(3):
                writer.add_scalar("loss", epoch, batch)
    with pytest.raises(ls.RunError, match="step='order'"):
        ls.import_run(tmp_path)
    run = ls.import_run(tmp_path, step="order")
    assert of(run, "loss") == {1 + step: float(step // 3) for step in range(90)}


def test_folders_inside_are_parts_of_a_training_or_trainings_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "keras" / "train", {"epoch_loss": {1: 1.0}})
    write(tmp_path / "keras" / "validation", {"epoch_loss": {1: 2.0}, "epoch_accuracy": {1: 0.5}})
    with SummaryWriter(str(tmp_path / "torch")) as writer:
        writer.add_scalars("loss", {"train": 1.0, "val": 2.0}, 1)
        writer.add_scalar("speed", 1.0, 1)
        writer.add_hparams({"width": 8, "name": "a"}, {"hparam/score": 3.0})
    write(tmp_path / "sweep", {"loss": {1: 0.0}})
    write(tmp_path / "sweep" / "a", {"loss": {1: 1.0}})
    write(tmp_path / "sweep" / "eval", {"loss": {1: 1.0}})
    with pytest.raises(ls.RunError, match=r"holds 5 trainings: keras \(tensorboard\), sweep"):
        ls.import_run(tmp_path)
    runs = {run.path.name: run for run in ls.import_runs(tmp_path, tmp_path / "out") if run.path}
    assert set(runs) == {"keras", "torch", "sweep", "sweep-a", "sweep-eval"}
    assert of(runs["keras"], "loss") == {1: 1.0}
    assert of(runs["keras"], "holdout_loss", "Holdout") == {1: 2.0}
    assert of(runs["keras"], "holdout_accuracy", "Holdout") == {1: 0.5}
    assert of(runs["torch"], "loss") == {1: 1.0}
    assert of(runs["torch"], "holdout_loss", "Holdout") == {1: 2.0}
    assert of(runs["torch"], "hparam/score") == {0: 3.0}
    assert runs["torch"].manifest["config"] == {"width": 8.0, "name": "a"}
    again = ls.import_runs(tmp_path, tmp_path / "out")
    assert {run.path.name for run in again if run.path} == {f"{name}-2" for name in runs}, "runs are no sources"


def test_a_torn_or_damaged_end_is_a_problem_and_what_came_before_is_read(tmp_path: Path) -> None:
    file = write(tmp_path, {"loss": level(range(1, 31), 1.0)})
    whole = file.read_bytes()
    ends = [len(whole) - 3, len(whole) - 20, len(whole) - 35]
    for number, data in enumerate([*(whole[:end] for end in ends), whole[:-10] + b"\xff" + whole[-9:]]):
        folder = tmp_path / f"torn{number}"
        folder.mkdir()
        torn = folder / file.name
        torn.write_bytes(data)
        run = ls.import_run(folder)
        board = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        board.Reload()
        assert of(run, "loss") == {event.step: event.value for event in board.Scalars("loss")}
        assert len(of(run, "loss")) in (28, 29)
        assert len(run.problems) == 1
        assert file.name in run.problems[0]
        assert f"of {len(data):,}" in run.problems[0]
        assert "source_torn" in [finding.kind for finding in run.findings()]
    assert ls.import_run(file).problems == []


def test_files_without_scalars_are_refused_with_what_they_hold(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "h")) as writer:
        writer.add_histogram("weights", torch.zeros(3), 1)
    with pytest.raises(ls.RunError, match=r"no scalars in .*weights: 1 × histograms"):
        ls.import_run(tmp_path / "h")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "events.out.tfevents.1.x").write_bytes(b"not an event file at all")
    with pytest.raises(ls.RunError, match=r"no scalars in .*has a damaged length"):
        ls.import_run(tmp_path / "e")
    write(tmp_path / "good", {"loss": {1: 1.0}})
    with pytest.warns(UserWarning, match="2 of 3 trainings were not imported: e: .*; h: "):
        runs = ls.import_runs(tmp_path, tmp_path / "out")
    assert [run.path.name for run in runs if run.path] == ["good"]


def test_what_is_no_scalar_is_listed_and_texts_of_json_are_settings(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 1.0, 1)
        writer.add_histogram("weights", torch.zeros(3), 1)
        writer.add_text("args", json.dumps({"lr": 0.1, "hub_token": "hf_abcdefghijklmn"}))
        writer.add_text("note", "a text")
        writer.add_scalar("new", 2.5, 1, new_style=True)
    body = ls.import_run(tmp_path).manifest
    assert set(body["imported"]["left_out"]) == {"weights", "note/text_summary"}
    assert body["config"] == {"args": {"lr": 0.1, "hub_token": "[redacted]"}}
    assert of(ls.import_run(tmp_path), "new") == {1: 2.5}


def test_hostile_names_are_harmless(tmp_path: Path) -> None:
    names = [
        "../../up",
        "a\x1b[31mred",
        "<img src=x onerror=alert(1)>",
        "\u202eltr",
        "x{y}",
        "{key}",
        "a" * 5000,
        "[b]x",
    ]
    write(tmp_path / "src", {name: {1: 1.0} for name in ["loss", *names]})
    run = ls.import_run(tmp_path / "src", tmp_path / "run")
    assert len(run.frame("Loss")) == len(names) + 1
    page = run.page(tmp_path / "page").read_text()
    assert "<img src=x" not in page
    assert "\x1b" not in (tmp_path / "run" / "run.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "run", "src"]
