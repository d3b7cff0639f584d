"""A watched training written as the trackers' files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from PIL import Image

import learnscope as ls
from learnscope.record import Record
from learnscope.store.backend import FolderBackend
from learnscope.trackers import GradientFlowTracker, SpectralTracker, TrackerConfig, probes_for, write_logs
from learnscope.trackers.logs import CheckpointFiles
from model.adapters.adapted import Adapted, adapted
from seeds.tiny import language_model
from trackers.tracked import FIRST, train

BOTH: dict[str, Any] = {"enable_spectral_tracking": True, "enable_gradient_tracking": True}
SPECTRAL = [
    "spectral_history_final.pt",
    "spectral_logs/spectral_history.pt",
    "spectral_logs/spectral_history_summary.json",
]
SPECTRAL_FIGURES = ["spectral_logs/effective_rank_heatmap.png", "spectral_logs/singular_values_final.png"]
GRADIENT = ["gradient_flow_final.pt", "gradient_logs/gradient_flow.pt", "gradient_logs/gradient_flow_summary.json"]
COMPARISON = "gradient_logs/gradient_layer_comparison.png"


def watched(one: Adapted, config: TrackerConfig, steps: int = 4) -> ls.Run:
    with ls.watch(one.model, one.optimizer, probes=probes_for(config, one.model), strict=True) as w:
        train(one, range(steps))
    return w.run


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def heatmaps(*names: str) -> list[str]:
    return [f"gradient_logs/gradient_heatmap_{name}.png" for name in names]


@pytest.mark.parametrize(
    ("family", "figures"),
    [
        ("lora", [*SPECTRAL_FIGURES, *heatmaps("A", "B")]),
        ("dora", [*SPECTRAL_FIGURES, *heatmaps("A", "B", "magnitude")]),
        ("adalora", [*SPECTRAL_FIGURES, *heatmaps("A", "B", "E")]),
        ("lora-fa", [*SPECTRAL_FIGURES, *heatmaps("B")]),
        ("vera", [*SPECTRAL_FIGURES, *heatmaps("lambda_b", "lambda_d")]),
        ("ia3", heatmaps("ia3_l")),
        ("layernorm", heatmaps("weight")),
    ],
)
def test_the_documented_files_of_each_family(family: str, figures: list[str], tmp_path: Path) -> None:
    config = TrackerConfig(**BOTH, spectral_log_frequency=2, gradient_log_frequency=1)
    run = watched(adapted(family), config)
    written = write_logs(run, tmp_path / "out", config)
    wanted = sorted([*SPECTRAL, *GRADIENT, COMPARISON, *figures])
    assert tree(tmp_path / "out") == wanted
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in written) == wanted
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.size[0] == 1500
                pixels = np.asarray(image.resize((60, 60))).reshape(-1, 3)
            assert len(np.unique(pixels, axis=0)) > 20  # more than a frame
    assert SpectralTracker.load(tmp_path / "out" / "spectral_history_final.pt").steps == [2, 4]
    assert GradientFlowTracker.load(tmp_path / "out" / "gradient_flow_final.pt").steps == [1, 2, 3, 4]


def test_the_final_files_serve_as_documented(tmp_path: Path) -> None:
    config = TrackerConfig(**BOTH, spectral_log_frequency=1, gradient_log_frequency=1)
    run = watched(adapted("lora"), config)
    write_logs(run, tmp_path, config, plots=False)
    assert tree(tmp_path) == sorted([*SPECTRAL, *GRADIENT])
    tracker = SpectralTracker.load(tmp_path / "spectral_history_final.pt")
    assert tracker.get_layer_history(FIRST) == SpectralTracker.from_run(run).get_layer_history(FIRST)
    assert len(tracker.get_layer_history(FIRST)["singular_values"]) == 4
    flow = GradientFlowTracker.load(tmp_path / "gradient_flow_final.pt")
    flow.create_heatmap(component="B", save_path=tmp_path / "gradient_heatmap.png")
    assert (tmp_path / "gradient_heatmap.png").stat().st_size > 10_000
    for name, view in (("spectral_logs/spectral_history", tracker), ("gradient_logs/gradient_flow", flow)):
        assert json.loads((tmp_path / f"{name}_summary.json").read_text()) == view.get_summary_stats()


@pytest.mark.parametrize(("enabled", "files"), [("spectral", SPECTRAL), ("gradient", GRADIENT), (None, [])])
def test_only_what_is_enabled_is_written(enabled: str | None, files: list[str], tmp_path: Path) -> None:
    both = TrackerConfig(**BOTH, spectral_log_frequency=1, gradient_log_frequency=1)
    run = watched(adapted("lora"), both, 2)
    chosen: dict[str, Any] = {f"enable_{enabled}_tracking": True} if enabled else {}
    config = TrackerConfig(**chosen)
    write_logs(run, tmp_path, config, plots=False)
    assert tree(tmp_path) == files
    assert [type(probe).__name__ for probe in probes_for(config)] == {
        "spectral": ["AdapterSpectrum"], "gradient": ["AdapterGradients"], None: [],
    }[enabled]  # fmt: skip


def test_nothing_measured_yet_is_said_and_no_failure(tmp_path: Path) -> None:
    config = TrackerConfig(**BOTH)  # every 100 steps
    with pytest.warns(ls.ProbeWarning, match="never due"):
        run = watched(adapted("lora"), config, 2)
    written = write_logs(run, tmp_path, config)
    assert tree(tmp_path) == sorted([*SPECTRAL, *GRADIENT])
    assert len(written) == 6
    for name in (SPECTRAL[2], GRADIENT[2]):
        body = json.loads((tmp_path / name).read_text())
        assert body["total_steps_logged"] == 0
        assert "nothing has been measured" in body["note"]


@pytest.mark.parametrize("probe", [ls.LearningRate(every=1), ls.AdapterSpectrum(every=1)])
def test_a_run_that_was_not_watched_for_it_is_refused(probe: ls.Probe, tmp_path: Path) -> None:
    one = adapted("lora")
    with ls.watch(one.model, one.optimizer, probes=[probe], strict=True) as w:
        train(one, range(1))
    with pytest.raises(ls.RunError, match=r"no records for a \w+Tracker: watch it with ls\.Adapter"):
        write_logs(w.run, tmp_path, TrackerConfig(**BOTH))
    assert tree(tmp_path) == []  # not even of the tracker that it has records for


def test_several_adapters_have_figures_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(language_model(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    model.add_adapter("sp/ecial", peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model.set_adapter("sp/ecial")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    config = TrackerConfig(**BOTH, spectral_log_frequency=1, gradient_log_frequency=1)
    run = watched(Adapted("lora", model, optimizer, {}, {}), config, 2)
    write_logs(run, tmp_path, config)
    drawn = [name for name in tree(tmp_path) if name.endswith(".png")]
    assert [name for name in drawn if "layer_comparison" in name and "_sp_ecial" in name]
    assert [name for name in drawn if "effective_rank_heatmap_sp_ecial" in name]
    assert not [name for name in drawn if "heatmap_A_default" in name]  # it had no gradient at any step
    assert SpectralTracker.load(tmp_path / "spectral_history_final.pt").get_layer_history(FIRST, adapter="sp/ecial")


def test_probes_follow_the_configuration() -> None:
    config = TrackerConfig(
        **BOTH, spectral_log_frequency=7, gradient_log_frequency=3, track_adapter_only=False, compute_full_svd=False,
        max_layers_to_track=4,
    )  # fmt: skip
    assert probes_for(config) == [
        ls.AdapterSpectrum(every=7, max_layers=4), ls.WeightSpectrum(every=7, full=False, max_layers=4),
        ls.AdapterGradients(every=3, adapters_only=False, max_layers=4),
    ]  # fmt: skip
    # of a model that trains nothing beside its adapters, which a session over all matrices would refuse
    names = [type(probe).__name__ for probe in probes_for(config, adapted("lora").model)]
    assert names == ["AdapterSpectrum", "AdapterGradients"]


def test_all_trained_matrices_of_a_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    model: Any = peft.get_peft_model(language_model(), peft.LoraConfig(**options))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    config = TrackerConfig(**BOTH, spectral_log_frequency=1, gradient_log_frequency=1, track_adapter_only=False)
    run = watched(Adapted("lora", model, optimizer, {}, {}), config, 2)
    write_logs(run, tmp_path, config)
    spectral = SpectralTracker.load(tmp_path / "spectral_history_final.pt")
    assert spectral.modules["none"] == ["lm_head.weight"]
    head: Any = model.base_model.model.lm_head.modules_to_save["default"].weight
    truth = torch.linalg.svdvals(head.detach().double())
    assert spectral.get_layer_history("lm_head.weight")["nuclear_norm"][-1] == pytest.approx(float(truth.sum()))
    assert "gradient_logs/gradient_heatmap_weight.png" in tree(tmp_path)


def test_a_later_checkpoint_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrackerConfig(**BOTH, spectral_log_frequency=1, gradient_log_frequency=2)
    one, files = adapted("lora"), CheckpointFiles(config)
    passes: list[Path] = []
    records = FolderBackend.records

    def counted(backend: FolderBackend, problems: list[str]) -> Iterator[Record]:
        passes.append(backend.path)
        return records(backend, problems)

    monkeypatch.setattr(FolderBackend, "records", counted)
    with ls.watch(one.model, one.optimizer, run=tmp_path / "run", probes=probes_for(config), sinks=[files]) as w:
        for step in (2, 4):
            train(one, range(step - 2, step))
            files.save(w.run, tmp_path / f"checkpoint-{step}")
            files.save(w.run, tmp_path / f"again-{step}")
        assert len(passes) == 2  # one for each tracker, at the first checkpoint
        for kind, name in ((SpectralTracker, "spectral_history.pt"), (GradientFlowTracker, "gradient_flow.pt")):
            whole = kind.from_run(w.run)
            for folder in ("checkpoint-4", "again-4"):
                saved = kind.load(tmp_path / folder / name)
                assert saved.steps == whole.steps
                assert saved.get_layer_history(FIRST) == whole.get_layer_history(FIRST)
    assert SpectralTracker.load(tmp_path / "checkpoint-2" / "spectral_history.pt").steps == [1, 2]
