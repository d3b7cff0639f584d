"""What a comparison writes: JSON, Markdown, figures, and the command's words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

import learnscope as ls
from comparison.made import compared, made, train
from learnscope.cli import main
from learnscope.comparison.figures import drawn, family_figure
from learnscope.comparison.words import parting_text, setting_cells
from learnscope.report.style import COLOURS


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    train(folders[0], save_at=[12])
    train(folders[1], shuffled_from=7, save_at=[12])
    train(folders[2], lr=0.3)
    return folders


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_everything_is_written_and_says_the_same(three: list[Path], tmp_path: Path) -> None:
    comparison = ls.compare(three)
    page = comparison.save(tmp_path / "out")
    body = strict((tmp_path / "out" / "compare.json").read_text())
    assert body["schema"] == 1
    assert {key: body[key] for key in comparison.to_json()} == json.loads(json.dumps(comparison.to_json()))
    assert [p["step"] for p in body["partings"]] == [7, 2]
    assert body["weights"]["steps"] == {"a": 12, "b": 12}
    text = page.read_text()
    assert "# a, b and c compared" in text
    assert "a and b diverge at step 7, the same bit for bit at the 6 common steps before" in text
    assert "| optimizers.0.groups.0.lr | 0.1 | 0.1 | 0.3 |" in text
    assert "The weights of c are not compared: it kept none; w.save_state()" in text
    for name in body["figures"]:
        assert f"({name})" in text
        with Image.open(tmp_path / "out" / name) as image:
            assert image.size[0] == 1500
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [*body["figures"], "compare.json", "compare.md"]
    )


def test_figures_that_are_no_longer_made_go_and_nothing_else(three: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    ls.compare(three[:2]).save(out)
    (out / "mine.png").write_bytes(b"mine")
    assert (out / "weights.png").exists()
    ls.compare([three[0], three[2]], metrics=["loss"]).save(out)
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "compare.md", "curves-Loss.png", "mine.png"]


def test_json_is_strict_with_missing_and_awkward_values() -> None:
    left, right = made({1: 1.0, 2: math.nan}), made({1: 1.0, 2: math.inf})
    left.manifest["config"] = {"limit": math.inf, "name": "é|\n"}
    text = json.dumps(compared(left, right).to_json(), allow_nan=False)
    body = strict(text)
    assert body["partings"][0]["series"][0]["status"] == ["nan", "inf"]
    assert body["series"][0]["runs"]["a"]["last"] is None
    assert body["differences"][0] == {"key": "config.limit", "values": {"a": "inf"}, "absent": ["b"]}


def test_names_and_values_that_markdown_would_read_are_escaped(tmp_path: Path) -> None:
    left, right = made({1: 1.0}), made({1: 1.0})
    left.manifest["config"] = {"a|b": "<c>|*d*"}
    page = compared(left, right).save(tmp_path)
    row = next(line for line in page.read_text().splitlines() if line.startswith("| config"))
    assert row.replace("\\|", "").count("|") == 4  # two runs, the name, and the ends


def test_curves_on_a_figure_are_the_runs_own(three: list[Path]) -> None:
    comparison = ls.compare(three)
    figure = family_figure(comparison, "Loss", [key for key in comparison.keys if key.probe == "Loss"])
    assert figure is not None
    [axes] = figure.axes
    lines = {to_hex(line.get_color()).upper(): line for line in axes.lines if len(line.get_xdata()) == 12}
    frame = comparison.curve("loss")
    for label, colour in zip("abc", COLOURS, strict=False):
        np.testing.assert_array_equal(lines[colour].get_xdata(), frame.index)
        np.testing.assert_array_equal(lines[colour].get_ydata(), frame[label])
    marks = {
        to_hex(line.get_color()).upper(): line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"
    }
    assert marks == {COLOURS[1]: 7, COLOURS[2]: 2}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c", "parts from a"]


@pytest.mark.parametrize(("high", "scale"), [(90.0, "linear"), (110.0, "log")])
def test_a_scale_is_logarithmic_beyond_two_decades(high: float, scale: str) -> None:
    comparison = compared(made({1: 1.0, 2: 5.0}), made({1: 1.0, 2: high}))
    figure = family_figure(comparison, "Loss", list(comparison.keys))
    assert figure is not None
    assert figure.axes[0].get_yscale() == scale


def test_what_has_nothing_to_show_is_not_drawn_but_counted() -> None:
    left, right = made({1: 1.0, 2: 2.0}), made({1: 1.0, 2: 3.0})
    for run in (left, right):
        for step in (1, 2):
            run.model("Loss", step, examples=64)
            run.model("Still", step, examples=64)
            run.model("Broken", step, value=None)
        run.model("Once", 1, examples=len(run.manifest))
    for step in (1, 2):
        left.model("Loss", step, own=step)
    [(name, figure)] = drawn(compared(left, right))
    assert name == "curves-Loss.png"
    assert figure.texts[1].get_text() == "1 series; 1 that never change left out; 1 that only one run has left out"


def test_values_that_are_not_finite_are_marked() -> None:
    comparison = compared(made({1: 1.0, 2: 2.0, 3: 3.0}), made({1: 1.0, 2: math.nan, 3: math.inf}))
    figure = family_figure(comparison, "Loss", list(comparison.keys))
    assert figure is not None
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses] == [[2, 3]]


def test_probes_with_odd_names_get_files_of_their_own() -> None:
    runs = [made({1: 1.0}), made({1: 2.0})]
    for n, run in enumerate(runs):
        for probe in ("a/b", "a b"):
            for step in (1, 2):
                run.model(probe, step, value=n + step)
    assert list(dict(drawn(compared(*runs)))) == ["curves-a_b.png", "curves-a_b_.png"]


def test_sentences() -> None:
    same = made({1: 1.0, 2: 2.0})
    never = compared(same, made({1: 1.0, 2: 2.0})).partings[0]
    assert parting_text(never, 0.0) == (
        "a and b never part: what both recorded (1 series) is the same bit for bit at all of their 2 common steps."
    )
    apart = compared(same, made({5: 1.0})).partings[0]
    assert "no step in common" in parting_text(apart, 0.0)
    close = compared(same, made({1: 1.0, 2: 2.0 + 1e-12})).partings[0]
    assert "diverge at step 2, the same bit for bit at the one common step before: in Loss loss (2, +1e-12)." in (
        parting_text(close, 0.0)
    )
    first = compared(same, made({1: math.nan, 2: 2.0}), tolerance=1e-3).partings[0]
    assert "diverge at step 1, which is the first that they have in common: in Loss loss (1, nan)." in (
        parting_text(first, 1e-3)
    )


def test_long_settings_are_shown_from_where_they_differ() -> None:
    left, right = ([f"layer.{n}" for n in range(50)], [f"layer.{n}" for n in range(51)])
    cells = setting_cells([left, right], 40)
    assert all(len(cell) <= 42 for cell in cells)
    assert cells[0].endswith("layer.49")
    assert "layer.50" in cells[1]


def test_the_command(three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["compare", *map(str, three)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a and b diverge at step 7" in said
    assert "optimizers.0.groups.0.lr 0.1 0.1 0.3" in said
    assert "Weights of b from those of a" in said
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written unless asked for"
    assert main(["compare", *map(str, three), "--out", str(tmp_path / "out")]) == 0
    assert f"written: {tmp_path / 'out' / 'compare.md'}" in capsys.readouterr().out


def test_the_command_prints_json_alone(three: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--json", "--metric", "loss", "norm", "--tolerance", "1e-6"]
    assert main(["compare", str(three[0]), str(three[1]), *arguments]) == 0
    body = strict(capsys.readouterr().out)
    assert body["tolerance"] == 1e-6
    assert {one["name"] for one in body["series"]} == {"loss", "norm"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["a"], "two runs or more"), (["a", "a"], "given twice"), (["a", "nowhere"], "is not a run folder"),
     (["a", "b", "--metric", "lss"], "did you mean 'loss'"), (["a", "b", "--tolerance", "-1"], "from 0 on")],
)  # fmt: skip
def test_what_the_command_refuses(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in "ab":
        made({1: 1.0}, tmp_path / name).backend.close()
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("learnscope compare: ")
    assert message in error
    assert error.count("\n") == 1
