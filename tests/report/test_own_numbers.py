"""A user's own numbers reach the report and `learnscope probes` without being registered anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.cli import main
from learnscope.reading.gather import one_pass
from learnscope.record import Column, Table
from learnscope.report.by_kind import layer_panels, other_figure
from learnscope.report.panels import drawn

LAYERS = ("0", "2")


class LayerRange(ls.Probe):
    """How far apart the largest and the smallest weight of each layer are."""

    every: int = 2

    def measure(self, moment: ls.Moment) -> list[ls.Row]:
        rows = []
        for layer in LAYERS:
            weight = moment.model.get_submodule(layer).weight
            rows.append(ls.Row("range", weight.max() - weight.min(), layer, "layer"))
            for side, value in (("low", weight.min()), ("high", weight.max())):
                rows.append(ls.Row("end", value, layer, "layer", {"side": side}))
        return [*rows, ls.Row("both", 1.0, labels={"part": "a"}), ls.Row("both", 2.0, labels={"part": "b"})]


class NormNames(ls.Quantities):
    records = "how large the weights are"
    size = ls.Quantity("√Σw²", kinds=("layer",), scale="log", better="lower")
    hidden = ls.Quantity("nothing that is worth a figure", kinds=("layer",), drawn="not")


class DeclaredNorm(ls.Probe):
    """The size of each layer's weights."""

    every: int = 2
    quantities: ClassVar[type[ls.Quantities]] = NormNames
    cost: ClassVar[str] = "one pass over the weights"

    def measure(self, moment: ls.Moment) -> list[ls.Row]:
        norms = {layer: moment.model.get_submodule(layer).weight.norm() for layer in LAYERS}
        rows = [NormNames.size.row(norm, layer, "layer") for layer, norm in norms.items()]
        return [*rows, *(NormNames.hidden.row(0.5, layer, "layer") for layer in LAYERS)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ls.Run:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    folder = tmp_path_factory.mktemp("own") / "run"
    with ls.watch(model, optimizer, run=folder, probes=[LayerRange(), DeclaredNorm()]):
        for _ in range(8):
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return ls.open_run(folder)


def test_numbers_of_layers_are_a_heatmap_with_one_for_each_label(run: ls.Run) -> None:
    text = run.report().read_text()
    figures = {panel.file: figure for panel, figure in drawn(run.reader)}
    expected = {
        "layers-LayerRange-range.png", "layers-LayerRange-end-side-low.png", "layers-LayerRange-end-side-high.png",
        "layers-DeclaredNorm-size.png",
    }  # fmt: skip
    assert {file for file in figures if file.startswith("layers-")} == expected
    for file in expected:
        assert f"]({file})" in text
        assert run.path is not None
        assert (run.path / "report" / file).stat().st_size > 1000
    [mesh] = [c for c in figures["layers-LayerRange-range.png"].axes[0].collections if isinstance(c, QuadMesh)]
    frame = run.frame("LayerRange", "range").pivot_table(index="scope", columns="step", values="value")
    np.testing.assert_allclose(np.asarray(mesh.get_array()), frame.loc[list(LAYERS)].to_numpy())


def test_numbers_of_the_model_are_curves_with_labels_as_series(run: ls.Run) -> None:
    figure = other_figure(run.reader)
    assert figure is not None
    [axes] = [axes for axes in figure.axes if axes.get_title(loc="left") == "LayerRange: both"]
    assert [(line.get_label(), set(line.get_ydata())) for line in axes.lines] == [("part a", {1.0}), ("part b", {2.0})]


def test_a_heatmap_of_an_earlier_report_goes_when_its_numbers_do(run: ls.Run, tmp_path: Path) -> None:
    stale = tmp_path / "layers-Gone-x.png"
    stale.write_bytes(b"")
    run.report(tmp_path)
    assert not stale.exists()


def test_what_was_declared_is_read_from_the_manifest(run: ls.Run) -> None:
    [panel] = [panel for panel in layer_panels(one_pass(run.reader)) if "DeclaredNorm" in panel.file]
    assert "√Σw²" in panel.reading


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["probes", *arguments, "--json"]) == 0
    return {entry["probe"]: entry for entry in json.loads(capsys.readouterr().out)}


def test_the_command_knows_them(run: ls.Run, capsys: pytest.CaptureFixture[str]) -> None:
    of_run = listed(capsys, "--run", str(run.path))
    assert [(name["name"], name["kinds"]) for name in of_run["LayerRange"]["names"]] == [
        ("range", ["layer"]), ("end", ["layer"]), ("both", ["model"]),
    ]  # fmt: skip
    here = listed(capsys)
    assert [name["name"] for name in here["DeclaredNorm"]["names"]] == ["size", "hidden"]
    assert here["DeclaredNorm"]["cost"] == "one pass over the weights"
    assert here["LayerRange"]["names"] is None
    assert here["GradientFlow"]["needs"] == ["grads"]
    assert "norm" in [name["name"] for name in here["GradientFlow"]["names"]]


def test_the_command_says_what_a_name_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probes", "GradientFlow"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "√Σg²" in shown
    assert "before every 10th step" in shown
    assert main(["probes", "GradientFlw"]) == 2
    assert "Did you mean 'GradientFlow'?" in capsys.readouterr().err


def test_probes_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "probes_of_mine.py"
    file.write_text(
        "import learnscope as ls\n\nclass Mine(ls.Probe):\n    '''Mine.'''\n    def measure(self, moment):\n"
        "        return {'x': 1}\n"
    )
    assert listed(capsys, "--from", str(file))["Mine"]["summary"] == "Mine."
    assert main(["probes", "--from", str(tmp_path / "absent.py")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_too_many_heatmaps_are_counted_and_names_alike_have_files_of_their_own() -> None:
    run = MadeRun(layers=["a", "b"])
    for step in (1, 2):
        names = [*(f"n{i}" for i in range(8)), "x/y", "x:y"]
        columns = [Column(name, [1.0 * step, 2.0]) for name in reversed(names)]
        run.write("Mine", step, [Table("layer", ["a", "b"], columns)])
    panels = layer_panels(run.reader)
    assert len({panel.file for panel in panels}) == len(panels) == 8
    assert "2 more figures of this kind left out" in panels[-1].reading
