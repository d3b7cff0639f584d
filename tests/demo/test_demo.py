"""The demo, end to end: each run really shows what its heading promises."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.demo import SCENARIOS, run_demo, runs
from learnscope.demo.data import digits, few_with_wrong_labels, sums_modulo, with_a_blank_image
from learnscope.demo.grokking import lasting_from, when_it_grokked
from learnscope.demo.scenario import DemoRun, check_free, clear, is_demo_run
from learnscope.probes import probe_modules
from report.page.agreeing import check_page

BASIC = {"GradientFlow", "ParameterChange", "LearningRate", "Loss", "BatchStats", "Holdout"}
NAMES = ["digits", "overfit", "vanishing", "nan", "grokking"]


def make_run(folder: Path, *probes: ls.Probe) -> None:
    model = nn.Linear(2, 2)
    ls.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run=folder, probes=probes).close()


def curve(run: ls.Run, name: str) -> list[float]:
    return list(run.frame(name=name, kind="model").sort_values("step")["value"])


# one test, not a fixture for many: spread over several workers, each would train everything again
def test_quick_demo_shows_what_it_promises(tmp_path: Path) -> None:
    out = tmp_path / "a demo"
    make_run(out / "nan", DemoRun(scenario="nan", training_examples=1))
    (out / "nan" / "from the earlier demo.txt").write_text("")
    make_run(out / "mine")
    kept = (out / "mine" / "run.json").read_bytes()
    threads, random = torch.get_num_threads(), torch.get_rng_state()

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run_demo(out, quick=True) == 0

    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random)
    assert sorted(path.name for path in out.iterdir()) == sorted([*NAMES, "mine"])
    assert (out / "mine" / "run.json").read_bytes() == kept
    assert not (out / "nan" / "from the earlier demo.txt").exists()
    opened = {name: ls.open_run(out / name) for name in NAMES}
    for name, run in opened.items():
        assert run.problems == [], name
        assert run.manifest["status"] == "finished"
        assert set(run.manifest["probes"]) >= BASIC
        assert not [record for record in run.records() if record.error], name
        check_page(out / name / "report" / "report.html", run)
    check_healthy(opened["digits"])
    check_overfit(opened["overfit"])
    check_vanishing(opened["vanishing"])
    check_nan(opened["nan"])
    assert "memorised from step" in when_it_grokked(opened["grokking"])
    check_printed(printed.getvalue(), out)


def check_healthy(run: ls.Run) -> None:
    assert {
        name
        for name, module in probe_modules().items()
        if module.split(".")[2] in ("gradients", "updates", "outputs", "examples", "features", "landscape")
        and name not in ("ExampleLedger", "LayerRewind", "Performance", "TaskAccuracy", "WeightDelta")
    } <= {record.probe for record in run.records()}
    assert [f for f in run.findings() if f.severity != "info"] == []
    assert curve(run, "holdout_accuracy")[-1] > 0.8
    rates = run.frame(name="learning_rate").sort_values("step")["value"]
    assert rates.iloc[0] < rates.max() > rates.iloc[-1]
    frame = run.frame("GradientFlow", kind="model")
    assert set(frame[frame["name"] == "noise_scale"]["unit"]) == {"as given to w.micro_batch"}
    assert frame[frame["name"] == "clip_coefficient"]["value"].min() < 1
    assert int(run.frame("Holdout")["epoch"].max()) > 0
    assert not run.frame(name="stability").empty


def check_overfit(run: ls.Run) -> None:
    held_out, training = curve(run, "holdout_loss"), curve(run, "loss")
    best = held_out.index(min(held_out))
    assert 0 < best < len(held_out) - 5
    assert held_out[-1] > 1.15 * held_out[best]
    assert sum(training[-20:]) < 0.6 * sum(training[len(training) // 2 - 20 : len(training) // 2])
    assert "overfitting" in {finding.kind for finding in run.findings()}


def check_vanishing(run: ls.Run) -> None:
    norms = run.frame("GradientFlow", "norm", "layer")
    last = norms[norms["step"] == norms["step"].max()].set_index("scope")["value"]
    assert 0 < last["layers.0"] < last["head"] / 100
    moved = run.frame("ParameterChange", "l2", "tensor").groupby("scope")["value"].max()
    assert moved["head.weight"] == 0
    assert moved["head.bias"] == 0
    assert moved["layers.7.weight"] > 0
    found = {finding.kind: finding for finding in run.findings()}
    assert "layers.0" in found["vanishing"].scopes
    assert set(found["not_optimised"].scopes) == {"head.weight", "head.bias"}


def check_nan(run: ls.Run) -> None:
    first = run.frame(name="first_nonfinite").sort_values("step").iloc[0]
    assert first["scope"] == "layers.1.weight"
    losses = run.frame(name="loss").set_index("step")
    assert losses["value"].loc[: first["step"]].notna().all()  # the forward of that step was fine
    assert set(losses["status"].loc[first["step"] + 1 :]) == {"nan"}
    assert run.findings()[0].kind == "nonfinite"
    assert "layers.1.weight" in run.findings()[0].title


def check_printed(text: str, out: Path) -> None:
    assert "\x1b" not in text  # no terminal, no control codes
    assert "\r" not in text
    for number, name in enumerate(NAMES, 1):
        assert f"{number}/5 {name}\n" in text
        assert f"report: {out / name / 'report' / 'report.html'}\n" in text
    assert f"learnscope report '{out / 'grokking'}'" in text  # a folder with a space, as a shell wants it
    assert f"ls.open_run({str(out / 'grokking')!r})" in text


def test_grokking_groks(grokked: Path) -> None:
    run = ls.open_run(grokked)
    by_heart, understood = lasting_from(run, "train_accuracy", 0.99), lasting_from(run, "holdout_accuracy", 0.95)
    assert by_heart is not None
    assert understood is not None
    assert understood > 5 * by_heart
    held_out = run.frame(name="holdout_accuracy").set_index("step")["value"]
    assert held_out.loc[by_heart : understood // 2].max() < 0.1  # a plateau near chance lies between
    frequencies = curve(run, "top_frequencies")
    assert frequencies[-1] > 0.8 > 0.5 > frequencies[0]
    assert when_it_grokked(run) == f"memorised from step {by_heart}, generalised from step {understood}"


@pytest.mark.parametrize(
    "occupy",
    [
        lambda folder: make_run(folder),
        lambda folder: make_run(folder, DemoRun(scenario="another", training_examples=1)),
        lambda folder: (folder / "run.json").write_text("not a run"),
        lambda folder: (folder / "run.json").write_text(json.dumps({"probes": ["DemoRun"]})),
        lambda folder: (folder / "thesis.txt").write_text("years of work"),
    ],
)
def test_what_the_demo_did_not_make_is_left_alone(tmp_path: Path, occupy) -> None:
    folder = tmp_path / "vanishing"
    folder.mkdir()
    occupy(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    with pytest.raises(ls.RunError, match="not a run of this demo"):
        run_demo(tmp_path)
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["vanishing"]  # refused before anything was trained


def test_links_and_files_in_the_way_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere" / "nan", DemoRun(scenario="nan", training_examples=1))
    (tmp_path / "nan").symlink_to(tmp_path / "elsewhere" / "nan")
    (tmp_path / "digits").write_text("a file")
    for name in ("nan", "digits"):
        with pytest.raises(ls.RunError, match="left as it is"):
            check_free([tmp_path / name])
    assert is_demo_run(tmp_path / "elsewhere" / "nan")


def test_interrupted_demo_runs_and_empty_folders_make_room(tmp_path: Path) -> None:
    stop = KeyboardInterrupt()

    def interrupt(step: int, steps: int, loss: torch.Tensor) -> None:
        if step == 12:  # every probe has looked once
            raise stop

    with pytest.raises(KeyboardInterrupt):
        runs.train_nan(tmp_path / "nan", True, interrupt)
    (tmp_path / "digits").mkdir()
    check_free([tmp_path / "nan", tmp_path / "digits", tmp_path / "not there"])
    clear(tmp_path / "nan")
    assert not (tmp_path / "nan").exists()


def test_missing_scikit_learn_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ls.RunError, match="pip install scikit-learn"):
        run_demo(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_data_is_what_it_says() -> None:
    train, held_out = digits()
    assert len(train) + len(held_out) == 1797
    noisy = few_with_wrong_labels(train, examples=200, wrong=0.2)
    assert int((noisy.tensors[1] != train.tensors[1][:200]).sum()) == 40
    blank = with_a_blank_image(train, position=7)
    assert [int(i) for i in (blank.tensors[0].flatten(1).sum(1) == 0).nonzero()] == [7]
    assert train.tensors[0][7].sum() > 0  # a copy was changed, not the data
    some, others = sums_modulo(7, share=0.5, seed=0)
    pairs = torch.cat([some.tensors[0], others.tensors[0]]).tolist()
    assert sorted(map(tuple, pairs)) == [(a, b) for a in range(7) for b in range(7)]
    assert torch.equal(some.tensors[1], some.tensors[0].sum(1) % 7)


def test_scenarios_are_named_like_their_runs() -> None:
    assert [scenario.name for scenario in SCENARIOS] == NAMES
