"""CSV in the forms that people have: separators, encodings, empty cells, NaN, steps within epochs, a million rows."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import learnscope as ls
from learnscope.importing import table


def written(tmp_path: Path, text: str, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def of(run: ls.Run, name: str, probe: str = "Loss") -> list[tuple[int, float | None, str | None]]:
    frame = run.frame(probe, name)
    return [
        (row.step, None if np.isnan(row.value) else row.value, row.status if isinstance(row.status, str) else None)
        for row in frame.itertuples()
    ]


def test_empty_cells_were_not_measured_and_nan_and_inf_were(tmp_path: Path) -> None:
    text = "step,loss,val_loss,x\n1,2.5,,NaN\n2,nan,1e-3,\n3,inf,,null\n4,-Infinity,0.5,7\n"
    run = ls.import_run(written(tmp_path, text))
    assert of(run, "loss") == [(1, 2.5, None), (2, None, "nan"), (3, None, "inf"), (4, None, "-inf")]
    assert of(run, "holdout_loss", "Holdout") == [(2, 1e-3, None), (4, 0.5, None)]
    assert of(run, "x") == [(1, None, "nan"), (4, 7.0, None)]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("step;loss;größe\n1;2,5;1\n2;1,25e-1;2\n", "utf-8"),
        ("step\tloss\tgröße\n1\t2.5\t1\n2\t0.125\t2\n", "utf-16"),
        ("step,loss,größe\r\n1,2.5,1\r\n2,0.125,2\r\n", "utf-8-sig"),
        ("step|loss|größe\n1|2.5|1\n2|0.125|2", "latin-1"),
        ('\n"step", "loss", "größe"\n1, 2.5, 1\n2, 0.125, 2\n', "utf-8"),
    ],
)
def test_separators_decimal_signs_and_encodings(tmp_path: Path, text: str, encoding: str) -> None:
    run = ls.import_run(written(tmp_path, text, encoding=encoding))
    assert of(run, "loss") == [(1, 2.5, None), (2, 0.125, None)]
    assert of(run, "größe") == [(1, 1.0, None), (2, 2.0, None)]
    notes = run.manifest["imported"]["notes"]
    assert bool(notes) == (encoding == "latin-1"), "what is only guessed is said"


def test_a_table_of_lightning_has_training_and_validation_in_rows_of_their_own(tmp_path: Path) -> None:
    head = "epoch,lr-AdamW,step,train_loss_step,val_loss\n"
    text = f"{head}0,,0,1.0,\n,0.1,0,,\n,0.1,0,,\n0,,9,,0.8\n1,,10,0.5,\n1,,19,,0.6\n"
    (tmp_path / "hparams.yaml").write_text("lr: 0.1\nnet: {width: 3}\nhf_token: abc\n")
    run = ls.import_run(written(tmp_path, text, "metrics.csv").parent)
    assert run.manifest["config"] == {"lr": 0.1, "net": {"width": 3}, "hf_token": "[redacted]"}
    assert of(run, "loss") == [(0, 1.0, None), (10, 0.5, None)]
    assert of(run, "holdout_loss", "Holdout") == [(9, 0.8, None), (19, 0.6, None)]
    assert of(run, "learning_rate", "LearningRate") == [(0, 0.1, None)]
    assert run.frame("Holdout")["epoch"].tolist() == [0, 1]
    assert run.manifest["imported"]["notes"] == [], "the same number twice is nothing to tell"
    assert run.frame("Loss", "epoch").empty, "whole epochs are in the records"


def test_settings_that_would_run_code_or_fill_memory_are_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "step,loss\n1,2\n")
    for text in ("a: !!python/object/apply:os.system ['touch ran']\n", "a: &x [1, 2]\nb: [*x, *x]\n", "a: [\n"):
        (tmp_path / "hparams.yaml").write_text(text)
        body = ls.import_run(path).manifest
        assert body["config"] == {}
        assert "hparams.yaml" in body["imported"]["notes"][0]
    assert not Path("ran").exists()


def test_steps_that_begin_again_with_every_epoch_count_on(tmp_path: Path) -> None:
    rows = "".join(f"{epoch},{batch},{10 - epoch}\n" for epoch in range(3) for batch in range(4))
    run = ls.import_run(written(tmp_path, f"epoch,batch,loss\n{rows}"))
    assert [step for step, _, _ in of(run, "loss")] == list(range(12))
    assert "counted on over epoch" in run.manifest["imported"]["step"]
    assert len(run.manifest["attempts"]) == 1


def test_a_table_without_steps_is_by_epoch_or_asks(tmp_path: Path) -> None:
    run = ls.import_run(written(tmp_path, "epoch,loss,accuracy,val_accuracy\n0,1.0,0.5,51.0\n1,0.5,0.7,60\n"))
    assert of(run, "loss") == [(0, 1.0, None), (1, 0.5, None)]
    assert of(run, "accuracy") == [(0, 0.5, None), (1, 0.7, None)]
    assert of(run, "val_accuracy") == [(0, 51.0, None), (1, 60.0, None)], "percentages are no shares: left as they are"
    note = next(e["note"] for e in run.manifest["imported"]["names"] if e["name"] == "val_accuracy")
    assert "--map 'val_accuracy=Holdout.holdout_accuracy'" in note
    path = written(tmp_path, "loss,other\n1,2\n3,4\n", "u.csv")
    with pytest.raises(ls.RunError, match=r"no column that counts steps: name one, step='…'.*of loss, other"):
        ls.import_run(path)
    assert of(ls.import_run(path, step="order"), "loss") == [(1, 1.0, None), (2, 3.0, None)]
    assert of(ls.import_run(path, step="other"), "loss") == [(2, 1.0, None), (4, 3.0, None)]
    with pytest.raises(ls.RunError, match="Did you mean 'other'"):
        ls.import_run(path, step="othr")


def test_another_number_for_the_same_step_is_told(tmp_path: Path) -> None:
    run = ls.import_run(written(tmp_path, "step,loss\n1,2\n1,2\n1,3\n2,1\n"))
    assert of(run, "loss") == [(1, 3.0, None), (2, 1.0, None)]
    assert run.manifest["imported"]["notes"] == ["2 cells of loss are of a step that comes again: the last counts"]


def test_percentages_become_shares_where_that_is_asked(tmp_path: Path) -> None:
    path = written(tmp_path, "step,val_accuracy\n1,50\n2,75\n")
    run = ls.import_run(path, map={"val_accuracy": "Holdout.holdout_accuracy"})
    assert of(run, "holdout_accuracy", "Holdout") == [(1, 0.5, None), (2, 0.75, None)]
    assert run.manifest["imported"]["names"][0]["factor"] == 0.01


def test_times_of_a_table_are_kept(tmp_path: Path) -> None:
    run = ls.import_run(written(tmp_path, "step,loss,timestamp\n1,1,2026-01-01T00:00:00Z\n2,1,2026-01-01T00:01:00Z\n"))
    assert run.frame()["time"].tolist() == [1767225600.0, 1767225660.0]
    run = ls.import_run(written(tmp_path, "step,loss,wall_time\n1,1,1767225600500\n", "ms.csv"))
    assert run.frame()["time"].tolist() == [1767225600.5]
    run = ls.import_run(written(tmp_path, "step,loss,time\n1,1,3.5\n", "since.csv"))
    assert of(run, "time") == [(1, 3.5, None)], "seconds since the start are a number like others"
    assert "not in the source" in run.manifest["imported"]["times"]


def test_a_restart_supersedes_what_came_after_it(tmp_path: Path) -> None:
    rows = [*((s, 1.0) for s in range(1, 7)), *((s, 2.0) for s in range(4, 9))]
    run = ls.import_run(written(tmp_path, "step,loss\n" + "".join(f"{s},{v}\n" for s, v in rows)), tmp_path / "run")
    assert of(run, "loss") == [(s, 1.0 if s < 4 else 2.0, None) for s in range(1, 9)]
    assert len(run.frame(superseded=True)) == 11, "what the first attempt had is kept"
    assert [entry["start_step"] for entry in run.manifest["attempts"]] == [0, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("step,loss\n", "has a head and no rows"),
        ("1,2\n3,4\n", "has no head"),
        ("step,loss\n1,2\n2,3,4\n", "line 3"),
        ("step,loss\n1,2\n2,abc\n3,4\n", "line 3: loss is 'abc', not a number, while 2 other cells are"),
        ("step,loss\n1.5,2\n", "steps are whole numbers"),
        ("step,name\n1,a\n", "no column of numbers besides step"),
        ("step,loss\n1,\0\n", "no text"),
    ],
)
def test_bad_tables_are_refused_with_the_place_and_leave_nothing(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ls.RunError, match=message) as caught:
        ls.import_run(path, tmp_path / "runs" / "a")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_column_that_cannot_be_read_may_be_left_out(tmp_path: Path) -> None:
    run = ls.import_run(written(tmp_path, "step,loss,x\n1,2,a\n2,3,4\n"), leave_out=["x"])
    assert of(run, "loss") == [(1, 2.0, None), (2, 3.0, None)]
    assert run.manifest["imported"]["left_out"] == {"x": "as asked"}


def test_a_last_line_that_was_cut_off_is_a_problem_and_no_number(tmp_path: Path) -> None:
    run = ls.import_run(written(tmp_path, "step,loss,lr\n1,2.0,0.1\n2,1.0,0.1\n3,1."), tmp_path / "run")
    assert [step for step, _, _ in of(run, "loss")] == [1, 2]
    assert len(run.problems) == 1
    assert "line, 4, is cut off" in run.problems[0]
    assert [finding.kind for finding in run.findings()] == ["source_torn"]


def test_columns_are_read_in_blocks_as_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS", 7)
    values = np.random.default_rng(0).standard_normal(50) * 10.0 ** np.arange(-25, 25)
    cells = [repr(v) for v in values.tolist()]
    cells[20], cells[30], cells[40] = "", "nan", "inf"
    path = written(tmp_path, "step,loss\n" + "".join(f"{s},{c}\n" for s, c in enumerate(cells)))
    found = of(ls.import_run(path), "loss")
    kinds = {30: "nan", 40: "inf"}
    assert found == [(s, None if s in kinds else values[s], kinds.get(s)) for s in range(50) if s != 20]


@pytest.mark.soak
def test_a_million_rows_are_no_million_objects(tmp_path: Path) -> None:
    steps = np.arange(1_000_000)
    loss = np.random.default_rng(0).standard_normal(len(steps))
    path = tmp_path / "long.csv"
    pd.DataFrame({"step": steps, "loss": loss, "lr": 0.1, "x": loss, "y": loss}).to_csv(path, index=False)
    tracemalloc.start()
    source = table.read(path, name="long")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(source.curves["loss"].values, loss)
    assert peak < 5 * len(steps) * 8 * 8, f"{peak:,} bytes are more than a few arrays for each of five columns"
    run = ls.import_run(path, tmp_path / "run")
    assert run.last_step == 999_999
    assert np.array_equal(run.frame("Loss", "loss")["value"].to_numpy(), loss)
