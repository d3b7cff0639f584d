"""Telemetry that is taken up again, and folders that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope.core.probe import ProbeWarning
from learnscope.store.backend import RunError
from learnscope.store.lines import LineFile
from telemetry.loops import Net, batches, distance, lines, telemetry_in, train, wide, without_times


def started() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Net()
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def part(
    folder: Path, model: Any, optimizer: Any, data: list[tuple[Tensor, Tensor]], start: int, **options: Any
) -> Any:
    with telemetry_in(folder, **options) as telemetry:
        telemetry.set_holdout_data(batches(2))
        train(model, optimizer, data, telemetry, start=start, loss=0.5)
    return telemetry


@pytest.mark.parametrize(("every", "cut"), [(1, 4), (3, 4), (3, 6), (5, 2)])
def test_a_resumed_runs_lines_are_those_of_an_uninterrupted_one(tmp_path: Path, every: int, cut: int) -> None:
    data = batches(10)
    model, optimizer = started()
    whole = part(tmp_path / "whole", model, optimizer, data, 1, every=every)

    model, optimizer = started()
    options = {"every": every, "resume": True}
    if cut >= every:
        first = part(tmp_path / "t", model, optimizer, data[:cut], 1, **options)
    else:
        with pytest.warns(ProbeWarning, match="epoch 0 had 2 batches"):
            first = part(tmp_path / "t", model, optimizer, data[:cut], 1, **options)
    assert first.global_step == cut
    second = part(tmp_path / "t", model, optimizer, data[cut:], cut + 1, **options)
    assert second.output_dir == tmp_path / "t"
    assert second.global_step == 10
    assert without_times(lines(second)) == without_times(lines(whole))
    assert len(lines(second)) == 10 // every

    attempts = second.run.manifest["attempts"]
    assert [(entry["attempt"], entry["start_step"], entry["last_step"]) for entry in attempts] == [
        (0, 0, cut), (1, cut, 10)
    ]  # fmt: skip
    assert second.run.manifest["status"] == "finished"
    assert second.run.manifest["id"] == first.run.manifest["id"] != whole.run.manifest["id"]


def test_the_first_delta_spans_the_interruption(tmp_path: Path) -> None:
    model, optimizer = started()
    kept = {}
    data = batches(6)
    with telemetry_in(tmp_path / "t", every=2) as telemetry:
        train(model, optimizer, data[:4], telemetry, after=lambda step: kept.update({step: wide(model)}))
    fresh, optimizer = started()
    fresh.load_state_dict(model.state_dict())
    with telemetry_in(tmp_path / "t", every=2, resume=True) as telemetry:
        train(fresh, optimizer, data[4:], telemetry, start=5, after=lambda step: kept.update({step: wide(fresh)}))
    last = lines(telemetry)[-1]
    assert (last["global_step"], last["weight_delta_since"]) == (6, 4)
    assert last["weight_delta"]["overall"] == pytest.approx(distance(kept[6], kept[4]), rel=1e-6)


def test_nothing_to_resume_starts_anew(tmp_path: Path) -> None:
    model, optimizer = started()
    telemetry = part(tmp_path / "t", model, optimizer, batches(2), 1, resume=True)
    assert telemetry.output_dir == tmp_path / "t"
    assert [line["global_step"] for line in lines(telemetry)] == [1, 2]
    assert len(telemetry.run.manifest["attempts"]) == 1


def test_a_given_step_goes_on_from_there(tmp_path: Path) -> None:
    model, optimizer = started()
    part(tmp_path / "t", model, optimizer, batches(3), 1)
    with telemetry_in(tmp_path / "t", resume=True) as telemetry:
        telemetry.on_batch_end(model, optimizer, 1, 1, global_step=100)
        telemetry.on_batch_end(model, optimizer, 2, 1)
    assert [line["global_step"] for line in lines(telemetry)] == [1, 2, 3, 100, 101]
    assert telemetry.run.manifest["attempts"][1]["start_step"] == 99


def test_a_torn_last_line_is_ended_and_counted_past(tmp_path: Path) -> None:
    model, optimizer = started()
    first = part(tmp_path / "t", model, optimizer, batches(3), 1)
    whole = first.metrics_file.read_bytes()
    first.metrics_file.write_bytes(whole[:-40])
    manifest = json.loads((tmp_path / "t" / "run.json").read_text())
    del manifest["attempts"][-1]["last_step"]  # as a killed process leaves it
    (tmp_path / "t" / "run.json").write_text(json.dumps(manifest))
    with telemetry_in(tmp_path / "t", resume=True) as telemetry:
        assert telemetry.global_step == 2, "the last step whose line is whole"
        telemetry.on_batch_end(model, optimizer, 4, 0)
    raw = telemetry.metrics_file.read_bytes().split(b"\n")
    assert raw[0:2] == whole.split(b"\n")[0:2]
    assert json.loads(raw[3])["global_step"] == 3
    with pytest.raises(ValueError):
        json.loads(raw[2])


class TestFoldersInUse:
    def test_records_are_never_added_to_unasked(self, tmp_path: Path) -> None:
        model, optimizer = started()
        part(tmp_path / "t", model, optimizer, batches(2), 1)
        before = {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}
        for number in (2, 3):
            with pytest.warns(ProbeWarning, match=rf"t already holds telemetry.*t-{number}\. .*resume=True"):
                telemetry = part(tmp_path / "t", model, optimizer, batches(2), 1)
            assert telemetry.output_dir == tmp_path / f"t-{number}"
            assert telemetry.metrics_file.parent == telemetry.checkpoint_file.parent == tmp_path / f"t-{number}"
            assert len(lines(telemetry)) == 2
        assert before == {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}

    @pytest.mark.parametrize(
        ("name", "content"),
        [("telemetry.jsonl", "{}\n"), ("run.json", "{}"), ("records.jsonl", "x"), ("records.jsonl", ""),
         ("records.parquet", "x")],
    )  # fmt: skip
    def test_any_file_of_records_keeps_a_folder(self, tmp_path: Path, name: str, content: str) -> None:
        """Also an empty one: what a process leaves that was killed, or ran out of space, while it began."""
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / name).write_text(content)
        model, optimizer = started()
        with pytest.warns(ProbeWarning, match="already holds telemetry"):
            telemetry = part(tmp_path / "t", model, optimizer, batches(1), 1)
        assert telemetry.output_dir == tmp_path / "t-2"
        assert (tmp_path / "t" / name).read_text() == content

    def test_other_files_do_not(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "notes.txt").write_text("mine")
        model, optimizer = started()
        assert part(tmp_path / "t", model, optimizer, batches(1), 1).output_dir == tmp_path / "t"
        assert (tmp_path / "t" / "notes.txt").read_text() == "mine"

    def test_neither_does_telemetry_that_saw_no_batch(self, tmp_path: Path) -> None:
        telemetry_in(tmp_path / "t").close()
        model, optimizer = started()
        assert part(tmp_path / "t", model, optimizer, batches(1), 1).output_dir == tmp_path / "t"

    def test_another_that_comes_and_goes_between_looking_and_locking(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The folder was free when it was looked at, and its lock is free again: it is not, all the same."""
        model, optimizer = started()

        def late(path: Path) -> LineFile:
            monkeypatch.undo()
            part(tmp_path / "t", model, optimizer, batches(2), 1)
            return LineFile(path)

        monkeypatch.setattr("learnscope.telemetry.folder.LineFile", late)
        with pytest.warns(ProbeWarning, match="already holds telemetry"):
            telemetry = part(tmp_path / "t", model, optimizer, batches(1), 1)
        assert telemetry.output_dir == tmp_path / "t-2"
        assert [len(lines(tmp_path / name / "telemetry.jsonl")) for name in ("t", "t-2")] == [2, 1]

    def test_a_folder_that_is_being_written_cannot_be_resumed(self, tmp_path: Path) -> None:
        model, optimizer = started()
        with telemetry_in(tmp_path / "t") as telemetry:
            telemetry.on_batch_end(model, optimizer, 1, 0)
            with pytest.raises(RunError, match="being written by another process"):
                telemetry_in(tmp_path / "t", resume=True)
        assert len(lines(telemetry)) == 1

    def test_a_manifest_that_cannot_be_read_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "run.json").write_text("{ half")
        with pytest.raises(RunError, match=r"run\.json is not readable JSON"):
            telemetry_in(tmp_path / "t", resume=True)
        assert (tmp_path / "t" / "run.json").read_text() == "{ half"


def test_going_on_from_an_older_checkpoint_supersedes_what_came_after_it(tmp_path: Path) -> None:
    """Ten steps, then training goes on from the checkpoint of step 5: its sixth step is step 6 again."""
    model, optimizer = started()
    data = batches(12)
    with telemetry_in(tmp_path) as telemetry:
        train(model, optimizer, data[:10], telemetry)
    with telemetry_in(tmp_path, resume=True) as telemetry:
        for number in range(6, 9):
            telemetry.on_batch_end(model, optimizer, number, 0, batch=data[0], global_step=number)
    assert [line["global_step"] for line in lines(telemetry)] == [*range(1, 11), 6, 7, 8]
    assert telemetry.to_dataframe()["global_step"].tolist() == list(range(1, 9))
    assert sorted({record.step for record in telemetry.run.records("LearningRate")}) == list(range(1, 9))
    assert lines(telemetry)[10]["weight_delta"]["overall"] is None
    assert "lies ahead" in lines(telemetry)[10]["status"]["weight_delta.overall"]


@pytest.mark.parametrize("there", ["lines", "watch"])
def test_what_is_not_telemetrys_own_is_not_continued(tmp_path: Path, there: str) -> None:
    """A `telemetry.jsonl` of another program, and the folder of a watched run."""
    folder = tmp_path / "t"
    if there == "lines":
        folder.mkdir()
        (folder / "telemetry.jsonl").write_text('{"batch_idx": 1}\n')
    else:
        with ls.watch(Net(), None, run=folder, probes=[ls.ParameterChange(every=1)]) as w:
            w.step()
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    words = "no run.json beside it: move it away" if there == "lines" else "is a run of watch, not telemetry"
    with pytest.raises(RunError, match=words):
        telemetry_in(folder, resume=True, strict=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == kept
    assert not (tmp_path / "t-2").exists()


def test_telemetry_of_another_model_is_not_continued(tmp_path: Path) -> None:
    model, optimizer = started()
    first = part(tmp_path / "t", model, optimizer, batches(2), 1)
    kept = first.metrics_file.read_bytes()
    other = nn.Sequential(nn.Linear(6, 2))
    stepper = torch.optim.SGD(other.parameters(), lr=0.1)
    again = telemetry_in(tmp_path / "t", resume=True, strict=False)
    with pytest.warns(ProbeWarning, match=r"holds the telemetry of another model \(Net(.|\n)*output_dir of its own"):
        train(other, stepper, batches(3), again)
    again.close()
    assert first.metrics_file.read_bytes() == kept
    with pytest.raises(RunError, match="another model"):
        train(other, stepper, batches(1), telemetry_in(tmp_path / "t", resume=True))
    with telemetry_in(tmp_path / "t", resume=True) as telemetry:
        train(model, optimizer, batches(1), telemetry)
    assert [line["global_step"] for line in lines(telemetry)] == [1, 2, 3]
